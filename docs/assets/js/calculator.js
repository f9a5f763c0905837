// The calculator. All arithmetic is the oracle's own, in oracle.js, which is written
// from the Python; this file reads the controls, draws, and keeps the address.
;(() => {
  const form = document.getElementById("calc-form")
  const out = document.getElementById("calc-out")
  const held = document.getElementById("calc-data")
  if (!form || !held || !window.atlasOracle) return
  const baked = JSON.parse(held.textContent)
  const { make } = permalink
  const oracle = name => atlasOracle[name]
  const answers = oracle("atlas.planner.answers")
  const { seconds, size, count } = oracle("atlas.planner.units")
  const { megatron, torchtitan, measure } = oracle("atlas.planner.frameworks")
  const { hugging_face } = oracle("atlas.planner.huggingface")
  const { divisors } = oracle("atlas.planner.rules")
  const { explain: explained } = oracle("atlas.planner.explain")
  const formulas = oracle("behind")
  const { units } = oracle("atlas.planner.stages")
  const AXES = ["pipeline", "expert", "embedding", "context", "tensor", "filter", "channel", "spatial"]
  const NUMBERS = ["gpus", "batch", "tokens", "micro", "chunks"]
  const CHECKS = ["sequence", "eager", "scores", "outside"]
  const PLAIN = { replicas: "data", compress: "none", micro: 0, recompute: "none", schedule: "1f1b", chunks: 2, method: "ring", precision: "", optimizer: "adam" }
  const HELD = { parameters: "parameters", gradients: "gradients", optimizer: "optimizer's state", activations: "activations", buffers: "buffers" }
  const EMPTY = { text: null, config: null }
  let state = { ...PLAIN, ...baked.first }
  let imported = { ...EMPTY }
  const made = new Map()

  // What the address says

  const read = () => {
    const q = permalink.read()
    const next = q.get("model") ? { ...PLAIN, gpus: 8, batch: 64 } : { ...PLAIN, ...baked.first }
    for (const [name, value] of q) {
      if ([...NUMBERS, ...AXES].includes(name)) next[name] = Math.max(1, Math.round(+value) || 1)
      else if (CHECKS.includes(name)) next[name] = value === "1"
      else if (name in PLAIN || name === "model" || name === "cluster") next[name] = value
    }
    if (!baked.models[next.model] && !imported.config) next.model = baked.first.model
    if (!baked.clusters[next.cluster]) next.cluster = baked.first.cluster
    state = next
  }
  const write = step => {
    const q = new URLSearchParams()
    for (const name of ["model", "cluster", "gpus", "batch", "tokens", ...AXES, ...Object.keys(PLAIN), ...CHECKS]) {
      const value = state[name]
      if (value === undefined || value === false || value === PLAIN[name] || (AXES.includes(name) && value === 1)) continue
      q.set(name, value === true ? 1 : value)
    }
    permalink.write(q, step)
  }

  // Values from presets

  const model = () => {
    const key = `${state.model} ${state.tokens || ""} ${imported.config ? imported.text : ""}`
    if (!made.has(key)) {
      const tokens = state.tokens || null
      if (imported.config && state.model === imported.text) {
        made.set(key, hugging_face(imported.config, imported.text, tokens))
      } else {
        const data = baked.models[state.model]
        const own = tokens && data.transformer ? { ...data, transformer: { ...data.transformer, tokens } } : data
        made.set(key, answers.model_of(state.model, own))
      }
    }
    return made.get(key)
  }
  const cluster = () => {
    const key = `cluster ${state.cluster}`
    if (!made.has(key)) made.set(key, answers.cluster_of(state.cluster, baked.clusters[state.cluster]))
    return made.get(key)
  }

  // The controls follow the state

  const field = name => form.elements[name]
  const show = (name, on) => {
    const box = form.querySelector(`[data-field="${name}"], [data-axis="${name}"]`)
    if (box) box.hidden = !on
  }
  const choices = (name, values) => {
    const select = field(name), now = values.map(String)
    if ([...select.options].map(o => o.value).join() !== now.join())
      select.replaceChildren(...now.map(v => make("option", { value: v }, v)))
  }
  const settle = () => {
    const m = model(), k = cluster()
    state.gpus = Math.min(state.gpus, k.levels[k.levels.length - 1].size)
    const axes = answers.axes_of(m)
    for (const name of AXES) {
      show(name, axes.includes(name))
      if (!axes.includes(name)) { delete state[name]; continue }
      const all = answers.legal(m, state.gpus, name)
      const range = field(name)
      range.max = all.length - 1
      let at = all.indexOf(state[name] || 1)
      if (at < 0) at = all.filter(n => n <= (state[name] || 1)).length - 1
      state[name] = all[Math.max(0, at)]
      range.value = Math.max(0, at)
      range.disabled = all.length < 2
      range.dataset.values = JSON.stringify(all)
      range.setAttribute("aria-valuetext", `${state[name]} ranks`)
      range.nextElementSibling.textContent = state[name]
    }
    const precise = Object.keys(baked.precisions).filter(p => baked.precisions[p] in k.device.flops)
    if (!precise.includes(state.precision)) state.precision = precise.includes("mixed") ? "mixed" : precise[0]
    choices("precision", precise)
    const cuts = AXES.reduce((all, name) => all * (state[name] || 1), 1)
    const replicas = state.gpus % cuts ? 0 : state.gpus / cuts
    const sharers = replicas * (state.expert || 1) * (state.embedding || 1)
    const share = sharers && state.batch % sharers === 0 ? state.batch / sharers : 1
    const micros = divisors(share)
    choices("micro", micros)
    const piped = (state.pipeline || 1) > 1
    const most = state.micro || (piped ? 1 : share) // as the oracle has it where nothing is said
    if (!micros.includes(state.micro)) state.micro = micros.filter(n => n <= most).pop() || 1
    const each = piped && units(m) % state.pipeline === 0 ? units(m) / state.pipeline : 1
    const chunks = divisors(each).filter(n => n > 1)
    if (state.schedule === "interleaved" && !chunks.length) state.schedule = "1f1b"
    choices("chunks", chunks.length ? chunks : [2])
    if (chunks.length && !chunks.includes(state.chunks)) state.chunks = chunks[0]
    if (state.replicas !== "data") state.compress = "none"
    const transformer = m.kind === "transformer"
    const routed = axes.includes("context") && (state.context || 1) > 1
    for (const [name, on] of Object.entries({
      tokens: transformer, sequence: transformer && (state.tensor || 1) > 1, eager: transformer, scores: transformer, method: routed,
      schedule: piped, chunks: piped && state.schedule === "interleaved", outside: piped && replicas > 1,
      compress: state.replicas === "data" && replicas > 1, replicas: replicas > 1 || sharers > 1,
    })) show(name, on)
    if ((state.tensor || 1) === 1) state.sequence = false
    for (const name of ["model", "cluster", "replicas", "compress", "micro", "recompute", "schedule", "chunks", "method", "precision", "optimizer"]) field(name).value = String(state[name])
    for (const name of ["gpus", "batch"]) if (document.activeElement !== field(name)) field(name).value = state[name]
    if (document.activeElement !== field("tokens")) field("tokens").value = m.tokens
    for (const name of CHECKS) field(name).checked = Boolean(state[name])
    form.querySelector(".left").textContent = replicas
      ? `${state.gpus} devices = ${cuts} along the axes × ${replicas} ${replicas === 1 ? "replica" : "replicas"}`
      : `${cuts} ranks along the axes do not divide ${state.gpus} devices`
  }

  // Drawing

  const shares = (rows, whole, format, limit) => {
    const sum = rows.reduce((all, row) => all + row.value, 0)
    const full = Math.max(whole, sum)
    const bar = make("div", { class: "stack", "aria-hidden": "true" })
    rows.forEach((row, i) => bar.append(make("i", { class: `c${i % 9}`, style: `width:${100 * row.value / full}%`, title: `${row.label}: ${format(row.value)}` })))
    if (limit) bar.append(make("b", { style: `left:${100 * limit / full}%`, title: `the device's ${format(limit)}` }))
    const body = make("tbody")
    rows.forEach((row, i) => body.append(make("tr", {},
      make("th", { scope: "row" }, make("i", { class: `key c${i % 9}` }), row.label),
      make("td", {}, number(format(row.value), row.label, row.why)),
      make("td", {}, `${(100 * row.value / whole).toFixed(1)} %`))))
    return [bar, make("table", { class: "parts" }, body)]
  }
  const number = (text, label, why) => make("button", { type: "button", class: "number", "aria-label": `${label}: ${text}. Show the formula`, onclick: e => explain(e.currentTarget, label, why()) }, text)

  // A number's formula, with the values put in

  let loading
  const drawing = () => loading ??= new Promise(done => {
    const style = document.createElement("link")
    style.rel = "stylesheet"
    style.href = `${out.dataset.maths}katex.min.css`
    const script = document.createElement("script")
    script.onload = done
    script.src = `${out.dataset.maths}katex.min.js`
    document.head.append(style, script)
  })
  const tex = (text, block = true) => {
    const el = make("div", { class: "tex", tabindex: "0", role: "group", "aria-label": "Formula" })
    drawing().then(() => katex.render(text, el, { displayMode: block, throwOnError: false }))
    return el
  }
  const panel = make("section", { class: "why", id: "calc-why", tabindex: "-1", hidden: true, "aria-live": "polite" })
  const explain = (from, label, parts) => {
    for (const b of out.querySelectorAll('.number[aria-expanded="true"]')) b.removeAttribute("aria-expanded")
    const close = () => { panel.hidden = true; from.removeAttribute("aria-expanded"); from.focus() }
    panel.replaceChildren(make("h3", {}, label), make("button", { type: "button", class: "close", onclick: close }, "Close"))
    for (const part of parts) {
      panel.append(make("p", { class: "quiet" }, part.of))
      if (part.symbols) panel.append(tex(`\\mathrm{${part.name.replace(/_/g, "\\_")}} = ${part.symbols}`))
      if (part.values) panel.append(tex(part.values))
    }
    panel.onkeydown = e => { if (e.key === "Escape") close() }
    panel.hidden = false
    from.setAttribute("aria-expanded", "true")
    from.closest("table, p, .wide").after(panel)
    panel.focus({ preventScroll: true })
  }
  const behind = (name, given) => formulas[name].map(part => {
    const { tex: put, value } = part.at(given)
    return { name: part.name, of: part.of, symbols: part.symbols, values: `= ${put} = ${formulas.number(value)}` }
  })
  const written = (name, of, values) => [{ name, of, values }]

  const table = p => {
    const body = make("tbody")
    for (const c of p.collectives) {
      const why = () => {
        const found = answers.called(p, c)
        return found ? behind(found.name, found) : written(c.op, c.op === "copy" ? "Bytes over the bandwidth to the host's memory." : "Timed as a whole: see the sentences below.", `${formulas.number(c.seconds)}\\ \\mathrm{s}`)
      }
      body.append(make("tr", {}, make("th", { scope: "row" }, c.axis), ...[c.op, c.what, c.ranks, c.level, count(c.count), size(c.payload), size(c.wire)].map(v => make("td", {}, String(v))), make("td", {}, number(seconds(c.seconds), `${c.axis} ${c.op}`, why))))
    }
    const heads = ["axis", "collective", "carries", "ranks", "level", "calls", "payload", "sent", "time"]
    return make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Collectives" },
      make("table", {}, make("thead", {}, make("tr", {}, ...heads.map(h => make("th", { scope: "col" }, h)))), body))
  }
  const flags = (title, found) => make("details", { class: "ranks" }, make("summary", {}, title),
    ...(found.missing.length ? [make("ul", {}, ...found.missing.map(m => make("li", {}, m)))] : []),
    ...(found.flags.length ? [code(found.flags.join(" \\\n  "))] : []))
  const code = text => {
    const said = make("span", { class: "said", role: "status" })
    const press = make("button", { type: "button" }, "Copy")
    press.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(text); said.textContent = "Copied." } catch { said.textContent = "Select the text and copy it." }
      setTimeout(() => { said.textContent = "" }, 4000)
    })
    return make("div", { class: "copyable" }, make("pre", {}, make("code", {}, text)), make("p", {}, press, said))
  }
  const command = p => {
    const own = imported.config && state.model === imported.text ? "config.json" : p.model.name
    const more = [`--micro-batch ${p.micro_batch}`, `--recompute ${p.train.recompute}`, `--precision ${p.train.precision.name}`, `--optimizer ${p.train.optimizer.name}`]
    if (state.tokens && p.model.kind === "transformer") more.push(`--seq ${p.model.tokens}`)
    if (!p.train.flash) more.push("--no-flash")
    if (p.train.eager) more.push("--eager")
    return `atlas predict --model ${own} --cluster ${p.cluster.name} --batch ${p.train.batch} --strategy "${p.strategy.__str__()}" ${more.join(" ")}`
  }

  const draw = () => {
    panel.hidden = true
    let p
    try {
      settle()
      p = answers.ask(model(), cluster(), state)
    } catch (wrong) {
      out.replaceChildren(make("p", { class: "refused", role: "alert" }, wrong.message))
      return
    }
    let kept
    const given = () => kept || (kept = { ...answers.recall(p) })
    const full = () => ({ ...given(), work: given().full })
    const times = Object.entries(p.times).filter(([, t]) => t > 0).map(([name, value]) => ({
      label: baked.names[name], value, why: () => behind(name, given()),
    }))
    const memory = Object.entries(p.memory).filter(([, n]) => n > 0).map(([name, value]) => ({
      label: HELD[name], value, why: () => behind(name === "optimizer" ? "state" : name, full()),
    }))
    const whole = memory.reduce((all, row) => all + row.value, 0)
    const n = formulas.number
    const sum = (rows, of) => written(of, `${of}: the sum of its parts.`, `${rows.map(r => n(r.value)).join(" + ")} = ${n(rows.reduce((a, r) => a + r.value, 0))}`)
    const peak = p.cluster.device.flops[p.train.precision.arithmetic]
    const band = p.low < p.high ? `${seconds(p.low)} to ${seconds(p.high)} by ${p.cluster.band.of}` : "not calibrated: no band"
    out.replaceChildren(
      make("p", { class: "strategy" }, make("code", {}, p.strategy.__str__())),
      make("p", { class: "figures" },
        make("span", {}, number(seconds(p.seconds), "time of a step", () => sum(times, "time of a step")), " a step"),
        make("span", {}, number(`${(100 * p.mfu).toFixed(1)} %`, "use of the peak", () => written("mfu", "The model's own operations over what the devices could do in a step.", `\\frac{${n(p.flops)}}{${n(p.seconds)} \\cdot ${n(peak)} \\cdot ${n(p.strategy.ranks)}} = ${n(p.mfu)}`)), " of the peak"),
        make("span", {}, number(String(+p.samples_per_second.toPrecision(4)), "samples a second", () => written("samples", "The batch over the time of a step.", `\\frac{${n(p.train.batch)}}{${n(p.seconds)}} = ${n(p.samples_per_second)}`)), " samples a second"),
        make("span", {}, number(size(whole), "memory of the fullest rank", () => sum(memory, "memory of the fullest rank")), ` of ${size(p.capacity)} `,
          make("span", { class: p.verdict === "fits" ? "badge" : "badge bad" }, p.verdict))),
      make("p", { class: "quiet" }, band),
      make("h2", {}, "Time of a step"), ...shares(times, p.seconds, seconds),
      make("h2", {}, "Memory of the fullest rank"), ...shares(memory, p.capacity, size, p.capacity),
      make("p", { class: "quiet" }, "The line is the device's limit."),
      make("h2", {}, "Collectives of a step, on one rank"),
      p.collectives.length ? table(p) : make("p", {}, "None: one rank alone."),
      make("h2", {}, "Limits and bottlenecks"),
      make("ul", { class: "findings" }, ...p.findings.map(f => make("li", { class: f.kind }, make("span", { class: f.kind === "limit" ? "badge" : "badge warn" }, f.kind), ` ${f.says}`))),
      make("h2", {}, "The same elsewhere"),
      make("p", {}, "On the command line:"), code(command(p)),
      flags("Flags of Megatron-LM", megatron(p)), flags("Flags of torchtitan", torchtitan(p)),
      make("details", { class: "ranks" }, make("summary", {}, "The command that would measure it"), code(measure(p))),
      make("details", { class: "ranks" }, make("summary", {}, "In sentences"), ...explained(p).split("\n").map(line => make("p", {}, line))),
    )
  }

  // Hearing

  const change = (name, el) => {
    if (AXES.includes(name)) state[name] = JSON.parse(el.dataset.values || "[1]")[+el.value]
    else if (CHECKS.includes(name)) state[name] = el.checked
    else if (NUMBERS.includes(name)) {
      if (!(Number.isInteger(+el.value) && +el.value >= 1)) return
      state[name] = +el.value
    } else state[name] = el.value
    if (["filter", "channel", "spatial"].includes(name) && state[name] > 1)
      for (const other of ["filter", "channel", "spatial"]) if (other !== name) state[other] = 1
    if (name === "model") {
      delete state.tokens
      if (imported.text !== state.model) imported = { ...EMPTY }
    }
    draw()
  }
  form.addEventListener("input", e => { if (e.target.name && e.target.type !== "file") change(e.target.name, e.target) })
  form.addEventListener("change", e => { if (e.target.type !== "file") write(true) })
  form.addEventListener("submit", e => e.preventDefault())
  field("config").addEventListener("change", async e => {
    const file = e.target.files[0]
    if (!file) return
    try {
      const said = await file.text()
      e.target.value = "" // so that the same file can be chosen again
      const config = JSON.parse(said)
      const text = `${config.model_type || "model"}-${config.hidden_size || config.n_embd || ""}`
      hugging_face(config, text, null)
      imported = { text, config }
      const select = field("model")
      if (![...select.options].some(o => o.value === text)) select.append(make("option", { value: text }, `${text} (config.json)`))
      state.model = text
      delete state.tokens
      draw()
    } catch (wrong) {
      out.replaceChildren(make("p", { class: "refused", role: "alert" }, `${file.name}: ${wrong.message}`))
    }
  })
  form.querySelector(".actions").append(...permalink.button(),
    make("button", { type: "button", onclick: () => { state = { ...PLAIN, ...baked.first }; imported = { ...EMPTY }; draw(); write(true) } }, "Start again"))
  permalink.hear(() => { read(); draw() })
  document.getElementById("calc-example").hidden = true
  form.hidden = out.hidden = false
  read()
  draw()
})()
