// The map: filter by communication, choose a cell; both stand in the address as
// #cell=row.column&c=star,collective&mode=all. Without this script all is shown.
;(() => {
  const form = document.getElementById("facets")
  if (!form) return
  const sections = [...document.querySelectorAll("section.cell")]
  const boxes = [...form.querySelectorAll("input[name=c]")]
  const rungs = ["gloo", "dry", "emulated GPU", "NCCL"]
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`
  const words = l => l.length < 2 ? l.join("") : `${l.slice(0, -1).join(", ")} and ${l.at(-1)}`

  const read = () => {
    const text = decodeURIComponent(location.hash.slice(1))
    const cells = new Set(sections.map(s => s.id))
    if (!text.includes("=")) return { cell: cells.has(text) ? text : "", c: [], mode: "any" }
    const q = new URLSearchParams(text)
    const known = new Set(boxes.map(b => b.value))
    return {
      cell: cells.has(q.get("cell")) ? q.get("cell") : "",
      c: (q.get("c") || "").split(",").filter(x => known.has(x)),
      mode: q.get("mode") === "all" ? "all" : "any",
    }
  }
  const write = s => {
    const parts = []
    if (s.cell) parts.push(`cell=${s.cell}`)
    if (s.c.length) parts.push(`c=${s.c.join(",")}`)
    if (s.mode === "all") parts.push("mode=all")
    return `#${parts.join("&")}`
  }
  const fits = (item, s) => {
    const has = item.dataset.c.split(" ")
    if (!s.c.length) return true
    return s.mode === "all" ? s.c.every(x => has.includes(x)) : s.c.some(x => has.includes(x))
  }

  const show = focus => {
    const s = read()
    boxes.forEach(b => { b.checked = s.c.includes(b.value) })
    form.elements.mode.value = s.mode
    const seen = { t: new Set(), s: new Set() }
    for (const section of sections) {
      const counts = { t: 0, s: 0 }
      const proof = [0, 0, 0, 0]
      for (const item of section.querySelectorAll("li[data-c]")) {
        const ok = fits(item, s)
        const kind = item.dataset.proof === undefined ? "s" : "t"
        item.hidden = !ok
        if (!ok) continue
        counts[kind]++
        seen[kind].add(item.querySelector("a").href)
        if (kind === "t") [...item.dataset.proof].forEach((d, k) => { proof[k] |= +d })
      }
      section.hidden = (s.cell && s.cell !== section.id) || !(counts.t + counts.s)
      for (const part of section.querySelectorAll(".t, .s")) {
        if (part.closest("li")) continue
        const kind = part.classList.contains("t") ? "t" : "s"
        part.hidden = !counts[kind] && !!part.querySelector("li")
      }
      const heading = section.querySelector("h4 + ul.t")
      if (heading) heading.previousElementSibling.hidden = !counts.t
      const cell = document.querySelector(`td[data-cell="${section.id}"]`)
      const none = !(counts.t + counts.s)
      const lit = proof.filter(Boolean).length
      cell.className = none ? "empty" : `lit-${lit}`
      cell.querySelector(".t").textContent = counts.t ? plural(counts.t, "technique") : ""
      cell.querySelector(".s").textContent = counts.s ? plural(counts.s, "system") : "no known system"
      cell.querySelector(".signs").textContent = none ? "" : proof.map(d => d ? "●" : "○").join("")
      const on = rungs.filter((_, k) => proof[k])
      cell.querySelector(".sr").textContent = on.length ? `proven on ${words(on)}` : "nothing proven yet"
      const link = cell.querySelector("a")
      link.setAttribute("href", write({ ...s, cell: s.cell === section.id ? "" : section.id }))
      if (s.cell === section.id) link.setAttribute("aria-current", "true")
      else link.removeAttribute("aria-current")
    }
    boxes.forEach(b => {
      const all = new Set()
      document.querySelectorAll("section.cell li[data-c]").forEach(item => {
        if (item.dataset.c.split(" ").includes(b.value)) all.add(item.querySelector("a").href)
      })
      b.parentElement.querySelector("output").textContent = all.size
    })
    form.querySelector(".hits").textContent =
      `${plural(seen.t.size, "technique")}, ${plural(seen.s.size, "system")}`
    const chosen = s.cell && document.getElementById(s.cell)
    if (chosen && focus && !chosen.hidden) {
      chosen.focus({ preventScroll: true })
      chosen.scrollIntoView({ block: "nearest" })
    }
  }

  form.addEventListener("change", () => {
    const c = boxes.filter(b => b.checked).map(b => b.value)
    location.hash = write({ ...read(), c, mode: form.elements.mode.value })
  })
  form.addEventListener("submit", e => e.preventDefault())
  form.addEventListener("reset", e => {
    e.preventDefault()
    location.hash = "#all"
  })
  addEventListener("hashchange", () => show(true))
  form.hidden = false
  show(true)
})()
