// Two to four things side by side, differences first; ?a=...&b=... chooses them.
;(() => {
  const view = document.querySelector(".compare-view")
  if (!view) return
  const { read, write, hear, make, button } = window.permalink
  const spec = JSON.parse(view.querySelector("script").textContent), rows = spec.rows
  const things = {}, named = {}
  const SLOTS = ["a", "b", "c", "d"], SHOWN = 12
  const index = spec.index.map(([id, name, kind, year, also]) => {
    named[id] = name
    return { id, name, kind, year, also, text: [id, name, ...also].map(plain) }
  }).sort((x, y) => x.name.localeCompare(y.name, "en") || (x.id < y.id ? -1 : 1))
  let chosen = [], unknown = [], folded = false

  function plain(text) { return text.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, " ").trim() }

  // Begins with, then a word that begins with, then anywhere
  const search = text => {
    const want = plain(text)
    if (!want) return index
    const rank = item => {
      let best = 9
      item.text.forEach((t, i) => {
        const at = t === want ? 0 : t.startsWith(want) ? 1 : ` ${t}`.includes(` ${want}`) ? 2 : t.includes(want) ? 3 : 9
        best = Math.min(best, at + (i > 1 ? .5 : 0))
      })
      return best
    }
    return index.map(item => [rank(item), item]).filter(([r]) => r < 9).sort((x, y) => x[0] - y[0]).map(([, item]) => item)
  }

  const restore = () => {
    const p = read()
    const asked = SLOTS.map(s => (p.get(s) || "").trim()).filter(Boolean)
    chosen = [...new Set(asked.filter(id => Object.hasOwn(named, id)))]
    unknown = asked.filter(id => !Object.hasOwn(named, id))
    folded = p.get("equal") === "0"
  }
  const changed = () => {
    const p = new URLSearchParams()
    chosen.forEach((id, i) => p.set(SLOTS[i], id))
    if (folded) p.set("equal", "0")
    write(p)
    draw()
  }

  // A search box with suggestions: arrows, Enter, Escape
  const slot = at => {
    const id = chosen[at], letter = SLOTS[at]
    const label = at < 2 ? ["First", "Second"][at] : ["Third", "Fourth"][at - 2]
    const list = make("ul", { role: "listbox", id: `list-${letter}`, "aria-label": `${label}: suggestions`, hidden: true })
    const input = make("input", {
      type: "text", id: `box-${letter}`, role: "combobox", "aria-expanded": "false", "aria-controls": list.id,
      "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false", placeholder: "System or technique",
    })
    input.value = id ? named[id] : ""
    let found = [], active = -1
    const mark = i => {
      active = i
      ;[...list.children].forEach((li, k) => li.setAttribute("aria-selected", `${k === i}`))
      if (i >= 0 && found[i]) {
        input.setAttribute("aria-activedescendant", `${list.id}-${i}`)
        list.children[i].scrollIntoView({ block: "nearest" })
      } else input.removeAttribute("aria-activedescendant")
    }
    const close = () => {
      list.hidden = true
      input.setAttribute("aria-expanded", "false")
      mark(-1)
    }
    const open = text => {
      found = search(text).filter(item => item.id === id || !chosen.includes(item.id)).slice(0, SHOWN)
      list.replaceChildren(...found.map((item, i) => {
        const also = item.also.find(a => text && plain(a).includes(plain(text)) && !plain(item.name).includes(plain(text)))
        const li = make("li", { role: "option", id: `${list.id}-${i}`, "aria-selected": "false" },
          item.name, make("span", {}, ` ${item.kind}, ${item.year}${also ? `, also called ${also}` : ""}`))
        li.addEventListener("pointerdown", e => { e.preventDefault(); take(item.id) })
        return li
      }))
      if (!found.length) list.append(make("li", { class: "none", role: "option", "aria-disabled": "true", "aria-selected": "false" }, `Nothing is called "${text}".`))
      list.hidden = false
      input.setAttribute("aria-expanded", "true")
      mark(found.length && text ? 0 : -1)
    }
    const take = other => {
      chosen[at] = other
      changed()
      const next = document.getElementById(`box-${SLOTS[Math.min(chosen.length, SLOTS.length - 1)]}`)
      ;(next || document.getElementById(`box-${letter}`)).focus()
    }
    input.addEventListener("input", () => open(input.value))
    input.addEventListener("focus", () => input.select())
    input.addEventListener("click", () => { if (list.hidden) open(input.value === (id && named[id]) ? "" : input.value) })
    input.addEventListener("blur", () => { close(); input.value = id ? named[id] : "" })
    input.addEventListener("keydown", e => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[e.key]
      if (step) {
        e.preventDefault()
        if (list.hidden) open(input.value === (id && named[id]) ? "" : input.value)
        else if (found.length) mark((active + step + found.length) % found.length)
        if (active < 0 && found.length) mark(step > 0 ? 0 : found.length - 1)
      } else if (e.key === "Enter" && !list.hidden && found[active]) {
        e.preventDefault()
        take(found[active].id)
      } else if (e.key === "Escape" && !list.hidden) {
        e.preventDefault()
        e.stopPropagation()
        close()
      }
    })
    const box = make("div", { class: "slot" }, make("label", { for: input.id }, label), make("div", { class: "combo" }, input, list))
    if (id) box.append(make("button", {
      type: "button", class: "drop", "aria-label": `Remove ${named[id]}`,
      onclick: () => { chosen.splice(at, 1); changed(); document.getElementById(`box-${SLOTS[Math.min(at, chosen.length)]}`).focus() },
    }, "\u00d7"))
    return box
  }

  // A value is a text, or [text, address, 1 if not verified, LaTeX]
  const value = (v, alone) => {
    const [text, to, doubt, tex] = Array.isArray(v) ? v : [v]
    const li = make("li", { class: alone ? "alone" : false }, to ? make("a", { href: to }, text) : text)
    if (tex) {
      const maths = make("span", { class: "tex" })
      if (window.katex) katex.render(tex, maths, { throwOnError: false })
      else maths.textContent = tex
      li.append(" ", maths)
    }
    if (doubt) li.append(make("span", { class: "unread", title: "not verified" }, "?"))
    return li
  }
  const label = v => Array.isArray(v) ? `${v[0]}\u0000${v[3] || ""}` : `${v}\u0000`
  const line = ([key, title], sets) => {
    const times = x => sets.filter(s => s.has(x)).length
    const some = sets.some(s => [...s].some(x => times(x) > 1)) // else all would be marked
    const cells = chosen.map(id => {
      const values = things[id].rows[key] || []
      if (!values.length) return make("td", { class: "nothing" }, "\u2013")
      return make("td", {}, make("ul", {}, ...values.map(v => value(v, some && times(label(v)) === 1))))
    })
    return make("tr", {}, make("th", { scope: "row" }, title), ...cells)
  }

  const table = () => {
    const kept = rows.filter(([key]) => chosen.some(id => (things[id].rows[key] || []).length))
    const unlike = [], alike = []
    for (const row of kept) {
      const sets = chosen.map(id => new Set((things[id].rows[row[0]] || []).map(label)))
      const equal = sets.every(s => s.size === sets[0].size && [...s].every(x => sets[0].has(x)))
      ;(equal ? alike : unlike).push(line(row, sets))
    }
    const head = make("thead", {}, make("tr", {}, make("td", {}), ...chosen.map(id => make("th", { scope: "col" },
      make("a", { href: things[id].to }, things[id].name), make("span", { class: "says" }, things[id].says)))))
    const band = (text, ...extra) => make("tr", { class: "band" }, make("th", { colspan: chosen.length + 1, scope: "colgroup" }, text, ...extra))
    const fold = make("button", { type: "button", "aria-expanded": `${!folded}` }, folded ? "Show" : "Hide")
    fold.addEventListener("click", () => { folded = !folded; changed(); fill().then(() => view.querySelector(".band button").focus()) })
    const first = make("tbody", {}, band(`${unlike.length} ${unlike.length === 1 ? "difference" : "differences"} `, make("span", { class: "key" }, "only here")), ...unlike)
    const second = make("tbody", {}, band(`The same in ${alike.length} ${alike.length === 1 ? "row" : "rows"} `, ...(alike.length ? [fold] : [])), ...(folded ? [] : alike))
    return make("div", { class: "compare-box", role: "region", tabindex: "0", "aria-label": "Comparison" },
      make("table", { class: "compare", style: `--n: ${chosen.length}` }, make("caption", { class: "sr" }, `${chosen.map(id => things[id].name).join(", ")} compared, differences first`), head, first, second))
  }

  // Each thing is a small script of its own, loaded when it is chosen
  window.atlasCompare = (id, thing) => { things[id] = thing }
  const asked = new Map()
  const load = id => {
    if (!asked.has(id)) asked.set(id, new Promise(done => {
      const script = make("script", { src: `${spec.parts}${id}.js`, onload: () => done(true), onerror: () => { asked.delete(id); done(false) } })
      document.head.append(script)
    }))
    return asked.get(id)
  }
  const fill = async () => {
    const want = `${chosen}`, got = await Promise.all(chosen.map(load))
    if (want !== `${chosen}`) return // another choice came meanwhile
    const lost = chosen.filter((_, i) => !got[i])
    place.replaceChildren(...lost.length ? [make("p", { class: "wrong", role: "alert" }, `Could not load ${lost.map(id => named[id]).join(", ")}: reload the page.`)] : [table()])
  }
  const place = make("div", {})
  const live = make("div", { class: "compare-live" })
  const draw = () => {
    const boxes = Math.min(SLOTS.length, Math.max(2, chosen.length + 1))
    const slots = make("div", { class: "slots" }, ...SLOTS.slice(0, boxes).map((_, at) => slot(at)))
    const bar = make("div", { class: "bar" })
    const out = [slots, bar]
    for (const id of unknown) {
      const near = search(id.replaceAll("-", " ")).slice(0, 3).map(item => item.name)
      out.push(make("p", { class: "wrong", role: "alert" }, `No system or technique has the id "${id}".${near.length ? ` Near it: ${near.join(", ")}.` : ""}`))
    }
    if (chosen.length > 1) {
      bar.append(...button(), make("code", {}, `atlas compare ${chosen.map(id => id.replace(/^technique\./, "")).join(" ")}`))
      out.push(place)
    } else out.push(make("p", { class: "hint" }, chosen.length ? "Choose one more." : "Choose two to four systems or techniques."))
    live.replaceChildren(...out)
    if (chosen.length > 1) fill()
    else place.replaceChildren()
    document.title = chosen.length > 1 ? `${chosen.map(id => named[id]).join(" and ")} - Compare` : title
  }
  const title = document.title

  view.querySelector(".compare-static").remove()
  view.prepend(live)
  restore()
  hear(() => { restore(); draw() })
  draw()
})()
