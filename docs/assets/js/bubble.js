// The bubble playground: two schedules on one scale, redrawn from the controls. The
// choice lives in the address. Orders are loaded schedule by schedule, when chosen.
document$.subscribe(({ body }) => {
  const form = body.querySelector("#bubble"), out = body.querySelector("#bubble-out")
  if (!form || !form.hidden || !window.atlasBubble) return
  const told = JSON.parse(body.querySelector("#bubble-data").textContent)
  const { first, names } = told
  const NS = "http://www.w3.org/2000/svg", LANE = 22, LEFT = 52
  const micro = form.m.dataset.values.split(" ").map(Number)
  const make = window.permalink.make
  const short = x => String(+x.toFixed(3))
  let turn = 0

  const loaded = name => new Promise((done, failed) => {
    if (window.atlasSchedules?.[name]) return done(window.atlasSchedules[name])
    const script = make("script", { src: `${told.folder}${name}.js` })
    script.addEventListener("load", () => done(window.atlasSchedules[name]))
    script.addEventListener("error", () => failed(new Error(`the schedule ${name} did not load`)))
    document.head.append(script)
  })

  const chosen = () => {
    const now = { a: form.a.value, b: form.b.value, v: +form.v.value, p: +form.p.value, m: micro[+form.m.value] }
    for (const k of ["F", "B", "W", "message"]) now[k] = +form[k].value
    return now
  }
  const put = now => {
    for (const k of ["a", "b", "v", "p", "F", "B", "W", "message"]) form[k].value = now[k]
    const at = micro.indexOf(+now.m)
    form.m.value = at < 0 ? micro.indexOf(first.m) : at
  }
  const read = () => {
    const now = { ...first }
    for (const [k, v] of window.permalink.read()) if (k in now) now[k] = v
    if (!(now.a in names)) now.a = first.a
    if (now.b && !(now.b in names)) now.b = ""
    return now
  }

  const svg = (tag, attrs, parent, text) => {
    const el = document.createElementNS(NS, tag)
    for (const k in attrs) el.setAttribute(k, attrs[k])
    if (text !== undefined) el.textContent = text
    parent.append(el)
    return el
  }
  const drawn = (name, s, found, now, end) => {
    const peak = Math.max(...atlasBubble.peaks(s)), copies = atlasBubble.weights(s)
    const said = `${short(found.makespan)} seconds, bubble ${(100 * found.bubble).toFixed(1)}%, ` +
      `at most ${short(peak)} micro-batches held, ${short(copies)} ${copies === 1 ? "copy" : "copies"} of the weights`
    const ran = told.ran[name].some(([p, m]) => p === now.p && m === now.m)
    const badge = make("span", { class: ran ? "badge" : "badge warn",
      title: ran ? "the exemplar ran this order with these ranks and micro-batches" : "computed here; not run with these numbers" },
    ran ? "recorded" : "drawn")
    const label = told.pages[name] ? make("a", { href: told.pages[name] }, names[name]) : names[name]
    const head = make("figcaption", {}, make("b", {}, label), said, " ", badge)
    const room = Math.max(280, (out.clientWidth || 700) - 34 - LEFT)
    const second = Math.max(room / end, 4)
    const wide = LEFT + second * end + 4, high = LANE * found.placed.length
    const box = make("div", { class: "gantt-scroll", tabindex: 0, role: "group", "aria-label": `${names[name]}: ${said}` })
    const root = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": names[name] }, box)
    found.placed.forEach((works, r) => {
      svg("text", { x: 0, y: r * LANE + 15 }, root, `rank ${r}`)
      for (const w of works) {
        const x = LEFT + second * w.start, width = second * (w.end - w.start)
        const up = s.ranks[r].held.indexOf(w.stage) % 2 ? " up" : ""
        const block = svg("rect", { class: `work ${w.kind}${up}`, x, y: r * LANE + 2, width: Math.max(.5, width), height: LANE - 4 }, root)
        svg("title", {}, block, `${w.kind}${w.micro} at stage ${w.stage}, ${short(w.start)} to ${short(w.end)}`)
        if (width > 13) svg("text", { class: "on", x: x + width / 2, y: r * LANE + 15 }, root, w.micro)
      }
    })
    return make("figure", { class: "gantt" }, head, box)
  }

  const show = async () => {
    const now = chosen(), mine = ++turn
    for (const label of form.querySelectorAll("label:has(output)")) {
      const input = label.querySelector("input")
      const value = input.name === "m" ? micro[+input.value] : input.value
      label.querySelector("output").textContent = value
      input.setAttribute("aria-valuetext", value)
    }
    const which = [now.a, now.b].filter(Boolean)
    form.querySelector(".chunks").hidden = !which.some(n => told.free.includes(n))
    try {
      const tables = await Promise.all(which.map(loaded))
      if (mine !== turn) return
      const parts = which.map((name, i) => {
        const all = tables[i]
        const v = told.free.includes(name) ? now.v : Object.keys(all)[0].split(",")[2]
        const texts = all[`${now.p},${now.m},${v}`]
        if (!texts) return { name }
        const s = atlasBubble.schedule(texts)
        return { name, s, found: atlasBubble.cost(s, now, now.message) }
      })
      const end = Math.max(1e-9, ...parts.filter(x => x.found).map(x => x.found.makespan))
      out.replaceChildren(...parts.map(x => x.found ? drawn(x.name, x.s, x.found, now, end)
        : make("p", { class: "refused" }, `${names[x.name]} has no schedule for ${now.p} ranks and ${now.m} micro-batches: choose other numbers.`)))
    } catch (problem) {
      out.replaceChildren(make("p", { class: "refused" }, problem.message))
    }
  }
  const keep = () => {
    const now = chosen()
    const changed = Object.entries(now).filter(([k, v]) => String(v) !== String(first[k]))
    window.permalink.write(new URLSearchParams(changed), true)
  }
  form.addEventListener("input", show)
  form.addEventListener("change", keep)
  form.addEventListener("submit", e => e.preventDefault())
  form.addEventListener("reset", e => { e.preventDefault(); put(first); keep(); show() })
  window.permalink.hear(() => { put(read()); show() })
  form.querySelector(".actions").append(...window.permalink.button())
  if (window.ResizeObserver) {
    let width = out.clientWidth
    new ResizeObserver(() => { if (Math.abs(out.clientWidth - width) > 2) { width = out.clientWidth; show() } }).observe(out)
  }
  form.hidden = false
  put(read())
  show()
})
