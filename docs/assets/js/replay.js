// The replay of a recorded run: ranks as lanes, spans as blocks, waits hatched,
// messages as arrows, collectives as bands. No dependency; the scene is JSON in
// the figure, the picture without this script is drawn by atlas/site/replay.py.
;(() => {
  "use strict"
  const NS = "http://www.w3.org/2000/svg"
  const TOP = 44, LEAST = 560, MOST = 4200, EDGE = 8, ROUND = 14, SMALL = 280
  const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches

  const svg = (tag, attrs, parent, text) => {
    const el = document.createElementNS(NS, tag)
    for (const k in attrs) el.setAttribute(k, attrs[k])
    if (text !== undefined) el.textContent = text
    if (parent) parent.appendChild(el)
    return el
  }
  const html = (tag, attrs, parent, text) => {
    const el = document.createElement(tag)
    for (const k in attrs) el.setAttribute(k, attrs[k])
    if (text !== undefined) el.textContent = text
    if (parent) parent.appendChild(el)
    return el
  }
  const thousands = n => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f")
  const short = t => (Math.abs(t) >= 1000 ? thousands(t) : String(+t.toPrecision(4)))
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`

  function ticks(end, wide) {
    if (end <= 0) return [0]
    const raw = end / Math.max(1, wide / 90)
    const scale = 10 ** Math.floor(Math.log10(raw) + 1e-12)
    const step = [1, 2, 5, 10].map(k => k * scale).find(s => s >= raw * 0.999)
    const out = []
    for (let i = 0; i * step <= end * (1 + 1e-9); i++) out.push(+(i * step).toPrecision(9))
    return out
  }

  // The page lists words and groups of ranks once, and times of the wall clock as
  // whole ticks, a beginning and how long from there.
  function unpack(scene) {
    const { words, groups, tick } = scene
    const wall = (begin, ticks) => [begin * tick, (begin + ticks) * tick]
    const apart = x => [x.slice(0, -2), wall(...x.slice(-2))]
    const named = (at, x) => x.map((v, i) => at.includes(i) ? words[v] : v)
    return {
      ...scene,
      spans: scene.spans.map(apart).map(([x, t]) => [...named([1, 2], x), ...t]),
      messages: scene.messages.map(apart).map(([x, t]) => [...named([2], x), ...t]),
      collectives: scene.collectives.map(apart).map(([[group, ...x], t]) => [groups[group], ...named([0], x), ...t]),
      waits: [scene.waits[0], scene.waits[1].map(([rank, ...t]) => [rank, ...wall(...t)])],
    }
  }

  // What happens when, in one mode of time: the same things, other places.
  function view(scene, index) {
    const at = 5 + 2 * index
    const span = s => ({ rank: s[0], name: s[1], label: s[2], color: s[3], depth: s[4], s: s[at], e: s[at + 1] })
    const message = m => ({ src: m[0], dst: m[1], label: m[2], color: m[3], bytes: m[4], s: m[at], e: m[at + 1] })
    const band = c => ({ group: c[0], name: c[1], color: c[2], bytes: c[3], s: c[at - 1], e: c[at] })
    const v = {
      ...scene.modes[index],
      spans: scene.spans.map(span),
      messages: scene.messages.map(message),
      bands: scene.collectives.map(band),
      waits: scene.waits[index].map(w => ({ rank: w[0], s: w[1], e: w[2] })),
    }
    const times = new Set([0, v.end])
    for (const x of [...v.spans, ...v.messages, ...v.bands]) { times.add(x.s); times.add(x.e) }
    v.steps = [...times].filter(t => t <= v.end).sort((a, b) => a - b)
    // moments closer than a thousandth of the run are one step
    v.steps = v.steps.filter((t, i) => i === 0 || t === v.end || t - v.steps[i - 1] > v.end / 1000)
    return v
  }

  class Replay {
    constructor(figure) {
      this.figure = figure
      this.scene = unpack(JSON.parse(figure.querySelector("script[type='application/json']").textContent))
      this.lane = parseFloat(figure.style.getPropertyValue("--lane")) || 44
      this.scroll = figure.querySelector(".replay-scroll")
      this.bars = [...figure.querySelectorAll(".replay-bytes > div")]
      this.said = this.scene.predicted || []
      this.views = this.scene.modes.map((_, i) => view(this.scene, i))
      this.most = Math.max(1, ...this.said, ...this.moved(this.views[0], Infinity))
      this.mode = 0
      this.fits = true
      this.speed = 1
      this.playing = 0
      this.controls()
      this.layout()
      this.seek(this.view.end)
      figure.addEventListener("keydown", e => this.key(e))
      if (window.ResizeObserver) new ResizeObserver(() => this.resized()).observe(this.scroll)
      figure.classList.add("replay-live")
      figure.replay = this
    }

    get view() { return this.views[this.mode] }
    get rounds() { return this.view.id === "rounds" } // what travels is drawn, not spans

    controls() {
      const bar = html("div", { class: "replay-controls", role: "group", "aria-label": "Replay controls" })
      const button = (label, name, act) => {
        const b = html("button", { type: "button", "aria-label": name, title: name }, bar, label)
        b.addEventListener("click", act)
        return b
      }
      this.play_ = button("", "Play", () => this.toggle())
      this.play_.className = "replay-play"
      button("\u2039", "Step back", () => this.step(-1)).className = "replay-back"
      button("\u203a", "Step forward", () => this.step(1)).className = "replay-forward"
      this.range = html("input", { type: "range", min: 0, max: 1000, step: "any", "aria-label": "Time" }, bar)
      this.range.addEventListener("input", () => { this.stop(); this.seek(this.range.value / 1000 * this.view.end) })
      this.clock = html("output", { class: "replay-clock" }, bar)
      const speed = html("select", { "aria-label": "Speed", title: "Speed" }, bar)
      for (const s of [0.25, 0.5, 1, 2, 4]) {
        const o = html("option", { value: s }, speed, `${s}\u00d7`)
        o.selected = s === 1
      }
      speed.addEventListener("change", () => { this.speed = +speed.value; this.restart() })
      const modes = html("span", { class: "replay-modes", role: "group", "aria-label": "Time shown" }, bar)
      this.switches = this.views.map((v, i) => {
        const b = html("button", { type: "button" }, modes, v.name)
        b.addEventListener("click", () => this.show(i))
        return b
      })
      this.zoom = button("Zoom in", "Zoom in: wider than the page, with every label", () => this.enlarge())
      this.zoom.className = "replay-zoom"
      this.figure.querySelector(".replay-stage").after(bar)
    }

    // The whole run at a glance, or as wide as its labels need.
    enlarge() {
      this.fits = !this.fits
      this.layout()
      this.seek(this.now)
      this.follow()
    }

    show(mode) {
      this.stop()
      this.mode = mode
      this.layout()
      this.seek(this.view.end)
    }

    resized() {
      const room = this.scroll.clientWidth
      if (!room || Math.abs(room - this.room) < 2) return
      this.layout()
      this.seek(this.now)
    }

    // As wide as its labels need.
    natural() {
      const v = this.view, fit = w => Math.round(Math.min(MOST, Math.max(LEAST, this.room, w)))
      if (this.rounds) return fit(76 * v.end)
      const long = v.spans.map(s => s.e - s.s).filter(d => d > 0).sort((a, b) => a - b)
      const short = long.length ? long[Math.floor(long.length * (this.mode ? 0.5 : 0.1))] : v.end / 12
      const sizes = v.spans.map(s => (s.label || s.name).length).sort((a, b) => a - b)
      const label = Math.max(16, 7 * (sizes[Math.floor(sizes.length * 0.9)] || 2) + 8)
      return fit(label * v.end / (short || 1))
    }

    // To fit, a round may shrink to a few pixels, and a run of blocks to a phone's width.
    width() {
      const needed = this.natural(), least = this.rounds ? ROUND * this.view.end : SMALL
      this.zoom.hidden = needed <= Math.max(this.room, least) + 2
      this.zoom.setAttribute("aria-pressed", !this.fits)
      return this.fits ? Math.round(Math.min(needed, Math.max(this.room, least))) : needed
    }

    x(t) { return EDGE + t / (this.view.end || 1) * (this.wide - 2 * EDGE) }
    y(rank) { return TOP + (rank + 0.5) * this.lane }

    // Draw everything once; seek() then only shows, hides and moves.
    layout() {
      this.room = this.scroll.clientWidth
      this.wide = this.width()
      const high = TOP + this.lane * this.scene.p + 4
      this.switches.forEach((b, i) => b.setAttribute("aria-pressed", i === this.mode))
      const root = svg("svg", { width: this.wide, height: high, viewBox: `0 0 ${this.wide} ${high}`, role: "img",
        "aria-label": this.scroll.getAttribute("aria-label") })
      this.axis(root)
      this.parts = []
      if (this.mode) for (const b of this.view.bands) this.band(root, b) // long: behind the work
      if (!this.rounds) {
        for (const w of this.view.waits) this.wait(root, w)
        for (const s of this.view.spans) this.span(root, s)
      }
      if (!this.mode) for (const b of this.view.bands) this.band(root, b)
      for (const m of this.view.messages) this.message(root, m)
      this.cursor = svg("line", { class: "cursor", y1: 17, y2: high }, root)
      this.scroll.replaceChildren(root)
    }

    axis(root) {
      for (const t of ticks(this.view.end, this.wide)) {
        svg("line", { class: "tick", x1: this.x(t), x2: this.x(t), y1: 17, y2: 22 }, root)
        svg("text", { class: "tick", x: this.x(t), y: 13 }, root, short(t))
      }
      for (const [name, s, e] of this.rounds ? this.scene.phases : []) {
        const x1 = this.x(s) + 2, x2 = this.x(e) - 6
        svg("line", { class: "phase", x1, x2, y1: TOP - 3, y2: TOP - 3 }, root)
        svg("text", { class: "phase", x: (x1 + x2) / 2, y: TOP - 7 }, root, name)
      }
      for (let r = 0; r < this.scene.p; r++)
        svg("line", { class: "lane", x1: 0, x2: this.wide, y1: this.y(r), y2: this.y(r) }, root)
    }

    part(root, thing, tip) {
      const g = svg("g", {}, root)
      svg("title", {}, g, `${tip}, ${short(thing.s)} to ${short(thing.e)} ${this.view.unit}`.trim())
      this.parts.push({ g, thing, state: "" })
      return g
    }

    wait(root, w) {
      const h = this.lane * 0.34, g = this.part(root, w, `rank ${w.rank} waits`)
      svg("rect", { class: "wait", x: this.x(w.s), y: this.y(w.rank) - h / 2, height: h,
        width: Math.max(0, this.x(w.e) - this.x(w.s)) }, g)
    }

    span(root, s) {
      const wide = this.x(s.e) - this.x(s.s)
      if (wide <= 0) return
      const h = Math.max(10, this.lane * 0.62 - 8 * s.depth), text = s.label || s.name
      const g = this.part(root, s, `rank ${s.rank}: ${[s.name, s.label].filter(Boolean).join(" ")}`)
      svg("rect", { class: `span c${s.color}`, x: this.x(s.s), y: this.y(s.rank) - h / 2, rx: 4,
        width: Math.max(1, wide - 1.5), height: h }, g)
      if (text.length * 6.5 + 4 <= wide)
        svg("text", { class: "on", x: this.x(s.s) + wide / 2, y: this.y(s.rank) + 4 }, g, text)
    }

    message(root, m) {
      const chip = this.rounds
      let x1 = this.x(m.s), x2 = this.x(m.e)
      const y1 = this.y(m.src), y2 = this.y(m.dst)
      const what = m.label ? ` (${m.label})` : ""
      const g = this.part(root, m, `rank ${m.src} to rank ${m.dst}${what}: ${thousands(m.bytes)} bytes`)
      if (chip) {
        const size = Math.min(22, Math.max(6, 0.5 * (this.x(1) - this.x(0))))
        svg("rect", { class: `chip c${m.color}`, x: x1 + 2, y: y1 - size / 2, width: size, height: size, rx: 4 }, g)
        if (size >= 15) svg("text", { class: "on", x: x1 + 2 + size / 2, y: y1 + 4 }, g, m.label.slice(size < 22 ? -2 : -3))
        x1 += size + 3
        x2 -= Math.min(6, size / 4)
      }
      const line = svg("line", { class: `message c${m.color}`, x1, y1, x2, y2 }, g)
      const dot = svg("circle", { class: `message c${m.color}`, cx: x2, cy: y2, r: 3.5 }, g)
      this.parts[this.parts.length - 1].flight = { line, dot, x1, y1, x2, y2, at: 1 }
    }

    band(root, b) {
      const top = this.y(Math.min(...b.group)) - this.lane * 0.44
      const g = this.part(root, b, `${b.name} over ranks ${b.group.join(", ")}: ${thousands(b.bytes)} bytes`)
      svg("rect", { class: `band c${b.color}${this.mode ? " behind" : ""}`, x: this.x(b.s) - (b.e > b.s ? 0 : 2.5), y: top, rx: 4,
        width: Math.max(5, this.x(b.e) - this.x(b.s) - 2),
        height: this.y(Math.max(...b.group)) + this.lane * 0.44 - top }, g)
    }

    // Bytes each rank has sent by now; a message in flight counts in part.
    moved(v, now) {
      const sent = new Array(this.scene.p).fill(0)
      const part = x => now >= x.e ? 1 : now <= x.s ? 0 : (now - x.s) / (x.e - x.s)
      for (const m of v.messages) sent[m.src] += m.bytes * part(m)
      if (!v.messages.length) for (const b of v.bands) for (const r of b.group) sent[r] += b.bytes * part(b)
      return sent
    }

    seek(t) {
      const v = this.view
      this.now = Math.min(v.end, Math.max(0, t))
      const whole = this.now >= v.end
      let flying = 0
      for (const p of this.parts) {
        const { s, e } = p.thing
        const state = whole ? "" : this.now < s ? "future" : this.now < e ? "present" : ""
        if (state !== p.state) { p.g.setAttribute("class", state); p.state = state }
        if (p.flight) {
          const at = state === "present" ? (this.now - s) / (e - s) : 1
          if (state === "present") flying++
          if (at !== p.flight.at) this.fly(p.flight, at)
        }
      }
      const x = this.x(this.now)
      this.cursor.setAttribute("x1", x)
      this.cursor.setAttribute("x2", x)
      this.cursor.style.visibility = whole ? "hidden" : ""
      this.count(this.moved(v, whole ? Infinity : this.now))
      const unit = v.unit ? ` ${v.unit === "ms" || v.end === 1 ? v.unit : v.unit + "s"}` : ""
      const digits = v.end >= 100 ? 0 : v.end >= 10 ? 1 : 2
      this.clock.textContent = `${this.now.toFixed(digits)} of ${short(v.end)}${unit}`
      this.range.value = v.end ? this.now / v.end * 1000 : 1000
      this.range.setAttribute("aria-valuetext", `${this.clock.textContent}, ${plural(flying, "message")} in flight`)
      this.figure.dataset.now = this.now
    }

    fly(f, at) {
      f.at = at
      const x = f.x1 + (f.x2 - f.x1) * at, y = f.y1 + (f.y2 - f.y1) * at
      f.line.setAttribute("x2", x)
      f.line.setAttribute("y2", y)
      f.dot.setAttribute("cx", x)
      f.dot.setAttribute("cy", y)
    }

    count(sent) {
      this.bars.forEach((row, r) => {
        row.querySelector("i").style.width = `${100 * sent[r] / this.most}%`
        row.querySelector("output").textContent = thousands(sent[r])
      })
    }

    follow() {
      const x = this.x(this.now), left = this.scroll.scrollLeft, room = this.scroll.clientWidth
      if (x < left || x > left + room * 0.85) this.scroll.scrollLeft = x - room * 0.3
    }

    step(way) {
      this.stop()
      const s = this.view.steps, near = this.view.end * 1e-9
      const next = way > 0 ? s.find(t => t > this.now + near) : [...s].reverse().find(t => t < this.now - near)
      this.seek(next === undefined ? (way > 0 ? this.view.end : 0) : next)
      this.follow()
    }

    toggle() { this.playing ? this.stop() : this.start() }

    restart() { if (this.playing) { this.stop(); this.start() } }

    // The whole run in 5 to 30 seconds at speed 1, however long it is.
    start() {
      if (this.now >= this.view.end) this.seek(0)
      const seconds = Math.min(30, Math.max(5, this.view.steps.length * 0.45)) / this.speed
      this.figure.classList.add("replay-playing")
      this.play_.setAttribute("aria-label", "Pause")
      this.play_.title = "Pause"
      if (calm()) {
        const beat = () => {
          const next = this.view.steps.find(t => t > this.now + this.view.end * 1e-9)
          this.seek(next === undefined ? this.view.end : next)
          this.follow()
          if (this.now >= this.view.end) this.stop()
        }
        const timer = setInterval(beat, Math.max(200, seconds * 1000 / this.view.steps.length))
        this.playing = { stop: () => clearInterval(timer) }
        return
      }
      let last = performance.now(), frame = 0
      const tick = time => {
        this.seek(this.now + Math.max(0, time - last) / 1000 / seconds * this.view.end)
        last = time
        this.follow()
        if (this.now >= this.view.end) this.stop()
        else frame = requestAnimationFrame(tick)
      }
      frame = requestAnimationFrame(tick)
      this.playing = { stop: () => cancelAnimationFrame(frame) }
    }

    stop() {
      if (!this.playing) return
      this.playing.stop()
      this.playing = 0
      this.figure.classList.remove("replay-playing")
      this.play_.setAttribute("aria-label", "Play")
      this.play_.title = "Play"
    }

    key(e) {
      if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "SELECT") return
      const act = {
        " ": () => this.toggle(),
        ArrowLeft: () => this.step(-1),
        ArrowRight: () => this.step(1),
        Home: () => { this.stop(); this.seek(0); this.follow() },
        End: () => { this.stop(); this.seek(this.view.end); this.follow() },
      }[e.key]
      if (!act || (e.key === " " && e.target.tagName === "BUTTON")) return
      act()
      e.preventDefault()
      e.stopPropagation()
    }
  }

  // On the front page a run plays by itself, once, unless the reader wants it calm.
  const plays = figure => {
    const box = figure.closest("[data-plays]")
    if (!box) return
    if (!calm()) figure.replay.start()
    for (const link of document.querySelectorAll(`a[href="#${figure.id}"]`))
      link.addEventListener("click", () => { figure.replay.stop(); figure.replay.seek(0); figure.replay.start() })
  }
  const begin = () => {
    for (const figure of document.querySelectorAll("figure.replay:not(.replay-live)")) {
      new Replay(figure)
      plays(figure)
    }
  }
  if (window.document$) document$.subscribe(begin)
  else if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin)
  else begin()
})()
