// Filter, count and sort the table of systems; the state is in the address.
;(() => {
  const view = document.querySelector(".systems-view")
  if (!view) return
  const { read, write, hear, make, button } = window.permalink
  const spec = JSON.parse(view.querySelector("script").textContent)
  const table = view.querySelector("table"), body = table.tBodies[0]
  const heads = [...table.tHead.rows[0].cells], keys = heads.map(h => h.dataset.key)
  const rows = [...body.rows].map((tr, order) => {
    const all = tr.dataset.v.split(" ")
    return {
      tr, order, id: tr.dataset.id, name: tr.cells[0].querySelector("a").textContent,
      also: tr.querySelector(".aka"), text: tr.dataset.q,
      year: +tr.cells[keys.indexOf("year")].textContent,
      any: new Set(all.map(t => t.replace("?", ""))), sure: new Set(all.filter(t => !t.endsWith("?"))),
    }
  })
  for (const row of rows) row.aliases = row.also ? row.also.textContent.toLowerCase() : ""
  const MOST = 4
  let state, typing = false

  const restore = () => {
    const p = read(), list = key => (p.get(key) || "").split(",").filter(Boolean)
    state = { on: {}, all: {}, q: p.get("find") || "", from: year(p.get("from")), to: year(p.get("to")) }
    for (const f of spec.facets) {
      const known = new Set(f.options.map(o => o[0]))
      state.on[f.key] = new Set(list(f.key).filter(v => known.has(v)))
      state.all[f.key] = f.many && list("all").includes(f.key)
    }
    state.verified = p.get("verified") === "1"
    const sort = p.get("sort") || "year", key = sort.replace(/^-/, "")
    state.sort = keys.includes(key) ? sort : "year"
    state.pick = list("pick").filter(id => rows.some(r => r.id === id)).slice(0, MOST)
  }
  const year = text => /^\d{4}$/.test(text || "") ? +text : null

  const keep = step => {
    const p = new URLSearchParams()
    if (state.q) p.set("find", state.q) // ?q= is the theme's own search
    for (const f of spec.facets) if (state.on[f.key].size) p.set(f.key, [...state.on[f.key]].join(","))
    const all = spec.facets.filter(f => state.all[f.key]).map(f => f.key)
    if (all.length) p.set("all", all.join(","))
    if (state.from) p.set("from", state.from)
    if (state.to) p.set("to", state.to)
    if (state.verified) p.set("verified", "1")
    if (state.sort !== "year") p.set("sort", state.sort)
    if (state.pick.length) p.set("pick", state.pick.join(","))
    write(p, step)
  }
  const changed = (step = true) => { typing = false; keep(step); draw() }

  // The form
  const boxes = new Map()
  const parts = {}
  const facet = f => {
    const badge = make("span", { class: "count" })
    const mode = f.many && make("span", { class: "mode", role: "radiogroup", "aria-label": `${f.title}: match` },
      ...["any", "all"].map(word => {
        const radio = make("input", { type: "radio", name: `mode-${f.key}`, value: word })
        radio.addEventListener("change", () => { state.all[f.key] = word === "all"; changed() })
        boxes.set(`${f.key}=${word}`, { radio })
        return make("label", {}, radio, ` ${word}`)
      }))
    const options = f.options.map(([value, label]) => {
      const box = make("input", { type: "checkbox", value })
      const count = make("span", { class: "count" })
      box.addEventListener("change", () => {
        state.on[f.key][box.checked ? "add" : "delete"](value)
        changed()
      })
      const line = make("label", { class: "option" }, box, make("span", {}, label), count)
      boxes.set(`${f.key}:${value}`, { box, count, line })
      return line
    })
    const inside = make("fieldset", {}, make("legend", { class: "sr" }, f.title), ...(mode ? [mode] : []),
      make("div", { class: "options" }, ...options))
    const fold = make("details", { class: "facet" }, make("summary", {}, f.title, " ", badge), inside)
    fold.open = AXES.has(f.key) && matchMedia("(min-width: 76.25em)").matches
    parts[f.key] = { fold, badge }
    return fold
  }
  const AXES = new Set(["sync", "dist", "comm"])
  const years = () => {
    const pick = (side, label) => {
      const select = make("select", { "aria-label": label }, make("option", { value: "" }, side))
      for (let y = spec.years[0]; y <= spec.years[1]; y++) select.append(make("option", { value: y }, `${y}`))
      select.addEventListener("change", () => { state[side] = year(select.value); changed() })
      parts[side] = select
      return select
    }
    return make("div", { class: "facet years" }, make("span", {}, "Year"), pick("from", "From year"), pick("to", "To year"))
  }
  const form = () => {
    parts.q = make("input", { type: "search", placeholder: "Name, other name, maker", "aria-label": "Filter systems by text", autocomplete: "off", spellcheck: "false" })
    parts.q.addEventListener("input", () => {
      state.q = parts.q.value
      changed(!typing) // a word typed is one step back, not one for each letter
      typing = true
    })
    parts.verified = make("input", { type: "checkbox" })
    parts.verified.addEventListener("change", () => { state.verified = parts.verified.checked; changed() })
    parts.hits = make("output", { class: "hits", role: "status" })
    parts.chips = make("span", { class: "chips" })
    parts.reset = make("button", { type: "button", onclick: () => reset() }, "Reset")
    parts.compare = make("span", { class: "picked" })
    const fold = make("details", { class: "facets" }, make("summary", {}, "Filters"),
      ...spec.facets.slice(0, 4).map(facet), years(), ...spec.facets.slice(4).map(facet),
      make("label", { class: "facet option" }, parts.verified, make("span", {}, "Verified cells only")))
    fold.open = matchMedia("(min-width: 76.25em)").matches
    const bar = make("div", { class: "bar" }, parts.q, parts.hits, parts.reset, ...button(), parts.compare)
    view.prepend(fold)
    view.querySelector(".systems-box").before(bar, parts.chips)
    view.classList.add("live")
  }
  const reset = () => {
    typing = false
    write(new URLSearchParams())
    restore()
    draw()
    parts.q.focus()
  }

  // What matches, and how many would
  const fails = row => {
    const has = state.verified ? row.sure : row.any, out = []
    for (const f of spec.facets) {
      const on = [...state.on[f.key]].map(v => `${f.key}:${v}`)
      if (on.length && !(state.all[f.key] ? on.every(t => has.has(t)) : on.some(t => has.has(t)))) out.push(f.key)
    }
    if (state.from && row.year < state.from || state.to && row.year > state.to) out.push("year")
    if (!words(row)) out.push("q")
    if (state.verified && ![...row.sure].some(t => !/^(status|survey):/.test(t))) out.push("verified")
    return out
  }
  const words = row => state.q.toLowerCase().split(/\s+/).every(w => row.text.includes(w) || row.aliases.includes(w))
  const value = (row, key) => {
    const text = row.tr.cells[keys.indexOf(key)].innerText.replaceAll("?", "").trim().toLowerCase()
    if (key === "name") return row.name.toLowerCase()
    if (key === "year") return row.year
    const share = text.match(/^(\d+) of (\d+)$/)
    if (share) return share[1] / share[2] + share[1] / 1e6
    return text
  }
  const sort = () => {
    const key = state.sort.replace(/^-/, ""), sign = state.sort.startsWith("-") ? -1 : 1
    const kept = new Map(rows.map(r => [r, value(r, key)]))
    const empty = v => v === ""
    const order = [...rows].sort((a, b) => {
      const x = kept.get(a), y = kept.get(b)
      if (empty(x) !== empty(y)) return empty(x) ? 1 : -1 // nothing known: last, both ways
      return (x < y ? -sign : x > y ? sign : 0) || a.order - b.order
    })
    if (order.some((r, i) => body.rows[i] !== r.tr)) body.append(...order.map(r => r.tr))
    heads.forEach(h => {
      if (h.dataset.key === key) h.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending")
      else h.removeAttribute("aria-sort")
    })
  }

  const draw = () => {
    const counts = new Map()
    let hits = 0
    for (const row of rows) {
      const out = fails(row), has = state.verified ? row.sure : row.any
      row.tr.hidden = out.length > 0
      hits += !out.length
      for (const token of has) {
        const key = token.split(":")[0]
        const counted = !out.length || out.length === 1 && out[0] === key && !state.all[key]
        if (counted) counts.set(token, (counts.get(token) || 0) + 1)
      }
      if (row.also) row.also.hidden = !(state.q && state.q.toLowerCase().split(/\s+/).some(w => w && row.aliases.includes(w)))
    }
    parts.hits.textContent = `${hits} of ${rows.length} systems`
    for (const f of spec.facets) {
      const on = state.on[f.key]
      parts[f.key].badge.textContent = on.size ? `${on.size}` : ""
      if (on.size) parts[f.key].fold.open = true
      for (const [v] of f.options) {
        const { box, count, line } = boxes.get(`${f.key}:${v}`), n = counts.get(`${f.key}:${v}`) || 0
        box.checked = on.has(v)
        count.textContent = n
        line.classList.toggle("none", !n && !box.checked)
      }
      if (f.many) boxes.get(`${f.key}=${state.all[f.key] ? "all" : "any"}`).radio.checked = true
    }
    if (parts.q.value !== state.q) parts.q.value = state.q
    parts.from.value = state.from || ""
    parts.to.value = state.to || ""
    parts.verified.checked = state.verified
    table.classList.toggle("sure", state.verified)
    sort()
    chips()
    picked()
  }
  const chips = () => {
    const out = []
    const chip = (text, act) => out.push(make("button", { type: "button", class: "chip", "aria-label": `Remove ${text}`, onclick: () => { act(); changed(); (parts.chips.querySelector("button") || parts.q).focus() } }, text, make("span", { "aria-hidden": "true" }, " \u00d7")))
    for (const f of spec.facets)
      for (const [v, label] of f.options)
        if (state.on[f.key].has(v)) chip(`${f.title}: ${label}`, () => state.on[f.key].delete(v))
    if (state.from) chip(`from ${state.from}`, () => { state.from = null })
    if (state.to) chip(`to ${state.to}`, () => { state.to = null })
    if (state.verified) chip("verified cells only", () => { state.verified = false })
    parts.chips.replaceChildren(...out)
  }

  // Choose up to four to compare
  const picks = () => {
    for (const row of rows) {
      row.box = make("input", { type: "checkbox", "aria-label": `Compare ${row.name}`, title: "Choose to compare" })
      row.box.addEventListener("change", () => {
        state.pick = row.box.checked ? [...state.pick, row.id] : state.pick.filter(id => id !== row.id)
        changed()
      })
      row.tr.cells[0].prepend(row.box)
    }
  }
  const picked = () => {
    const chosen = state.pick.map(id => rows.find(r => r.id === id))
    for (const row of rows) {
      row.box.checked = state.pick.includes(row.id)
      row.box.disabled = chosen.length >= MOST && !row.box.checked
    }
    const query = chosen.map((r, i) => `${"abcd"[i]}=${r.id}`).join("&")
    const names = chosen.map(r => r.name).join(", ")
    parts.compare.replaceChildren(...chosen.length > 1 ? [make("a", { href: `${spec.compare}?${query}` }, `Compare ${names}`)]
      : chosen.length ? [`Compare ${names} with: choose another row`] : [])
  }

  const sortable = () => heads.forEach(h => {
    const press = make("button", { type: "button" }, ...h.childNodes)
    press.addEventListener("click", () => {
      state.sort = state.sort === h.dataset.key ? `-${h.dataset.key}` : h.dataset.key
      changed()
    })
    h.append(press)
  })

  restore()
  form()
  picks()
  sortable()
  hear(() => { restore(); draw() })
  draw()
})()
