// Numbers that follow two sliders, from the formulas themselves; the address keeps
// them as #p=64&n=1000000. Without this script the first numbers stand.
;(() => {
  const form = document.querySelector("form.sliders")
  if (!form || !window.atlasFormulas) return
  const p = form.querySelector("#slide-p"), n = form.querySelector("#slide-n")
  const cells = [...document.querySelectorAll("output[data-f]")]
    .map(el => ({ el, f: el.dataset.f, rules: JSON.parse(el.dataset.a), unit: el.dataset.u, limit: +el.dataset.limit || Infinity }))
  const scales = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]

  const brief = (value, unit) => {
    if (unit !== "B" && Math.abs(value) < 1e5 && Number.isInteger(value)) return `${value} ${unit}`.trim()
    const [scale, letter] = scales.find(s => Math.abs(value) >= s[0]) || [1, ""]
    return `${Number((value / scale).toPrecision(3))} ${letter}${unit}`.trim()
  }
  const at = (rule, now) => {
    if (!Array.isArray(rule)) return rule
    const [of, power, plus, by] = rule
    if (by === "r" || (by === "p" && of === 1)) return now[by]
    return Math.max(1, Math.floor(of * Math.pow(now[by], power) + 1e-9)) + plus
  }
  const value = (cell, P, N) => {
    if (P > cell.limit) return `at most ${cell.limit} ranks`
    const found = []
    for (const r of new Set([0, Math.min(1, P - 1), P - 1])) {
      const now = { p: P, n: N, r }
      try { found.push(window.atlasFormulas[cell.f](...cell.rules.map(([, rule]) => at(rule, now)))) }
      catch (refused) { return refused.message }
    }
    const low = brief(Math.min(...found), cell.unit), high = brief(Math.max(...found), cell.unit)
    return low === high ? low : `${low} to ${high}`
  }
  const draw = (P, N) => {
    form.querySelector("#shown-p").textContent = P
    form.querySelector("#shown-n").textContent = brief(N, "")
    p.setAttribute("aria-valuetext", `${P} ranks`)
    n.setAttribute("aria-valuetext", `${brief(N, "")} elements`)
    for (const cell of cells) cell.el.textContent = value(cell, P, N)
  }
  const now = () => [Math.round(2 ** +p.value), Math.round(10 ** +n.value)]
  const address = ([P, N]) => `#p=${P}&n=${N}`
  const read = () => {
    const q = new URLSearchParams(location.hash.slice(1))
    const P = Math.min(1024, Math.max(2, Math.round(+q.get("p")) || 8))
    const N = Math.min(1e10, Math.max(1e3, Math.round(+q.get("n")) || 1e8))
    p.value = Math.log2(P)
    n.value = Math.log10(N)
    draw(P, N)
  }
  form.addEventListener("input", () => draw(...now()))
  form.addEventListener("change", () => {
    const next = address(now())
    if (location.hash !== next) history.pushState(null, "", next)
  })
  form.addEventListener("submit", e => e.preventDefault())
  form.addEventListener("reset", e => {
    e.preventDefault()
    history.pushState(null, "", address([8, 1e8]))
    read()
  })
  addEventListener("hashchange", read)
  addEventListener("popstate", read)
  form.hidden = false
  read()
})()
