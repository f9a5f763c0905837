// The timeline shows one axis at a time, all of its families or some, and the
// arrow keys walk from item to item; the state is in the address.
;(() => {
  const view = document.querySelector(".timeline-view")
  if (!view) return
  const { read, write, hear, make, button } = window.permalink
  const axes = [...view.querySelectorAll(".t-axis")].map(el => ({
    el, id: el.id, title: el.querySelector("h2").textContent,
    families: [...el.querySelectorAll(".t-heads li")].map(li => ({ li, id: li.dataset.family, width: li.dataset.width, name: li.textContent })),
  }))
  const KINDS = ["technique", "system"]
  let axis, only, kinds

  const restore = () => {
    const p = read(), list = key => (p.get(key) || "").split(",").filter(Boolean)
    axis = axes.find(a => a.id === p.get("axis")) || axes[0]
    only = new Set(list("family").filter(f => axis.families.some(x => x.id === f)))
    kinds = new Set(list("kind").filter(k => KINDS.includes(k)))
  }
  const changed = () => {
    const p = new URLSearchParams()
    if (axis !== axes[0]) p.set("axis", axis.id)
    if (only.size) p.set("family", [...only].join(","))
    if (kinds.size) p.set("kind", [...kinds].join(","))
    write(p)
    draw()
  }

  const tabs = axes.map(a => make("button", { type: "button", onclick: () => { axis = a; only = new Set(); changed() } }, a.title.split(":")[0]))
  const kind = make("select", { "aria-label": "Show", onchange: () => { kinds = new Set(kind.value ? [kind.value] : []); changed() } },
    make("option", { value: "" }, "Techniques and systems"), make("option", { value: "technique" }, "Techniques only"), make("option", { value: "system" }, "Systems only"))
  const hits = make("output", { role: "status" })
  const all = make("button", { type: "button", onclick: () => { only = new Set(); changed() } }, "All families")
  const chips = make("div", { class: "t-chips", role: "group", "aria-label": "Families" })
  const bar = make("div", { class: "bar" }, make("span", { class: "t-tabs", role: "group", "aria-label": "Axis" }, ...tabs), kind, hits, ...button())

  const shown = li => !kinds.size || kinds.has(li.className)
  const draw = () => {
    axes.forEach((a, i) => {
      a.el.hidden = a !== axis
      tabs[i].setAttribute("aria-pressed", `${a === axis}`)
    })
    kind.value = [...kinds][0] || ""
    const seen = axis.families.filter(f => !only.size || only.has(f.id)), at = new Map(seen.map((f, i) => [f.id, i + 2]))
    axis.el.style.setProperty("--columns", seen.map(f => `minmax(0,${f.width}fr)`).join(" "))
    axis.families.forEach(f => { f.li.hidden = !at.has(f.id) })
    const counted = new Set(), per = {}
    for (const cell of axis.el.querySelectorAll(".t-cell")) {
      const items = [...cell.querySelectorAll("li")]
      items.forEach(li => { li.hidden = !shown(li) })
      const kept = items.filter(li => !li.hidden), f = cell.dataset.family
      per[f] = (per[f] || 0) + kept.length
      cell.hidden = !at.has(f) || !kept.length
      if (at.has(f)) cell.style.setProperty("--k", at.get(f))
      if (!cell.hidden) kept.forEach(li => counted.add(li.firstChild.href))
    }
    for (const row of axis.el.querySelectorAll(".t-years > li"))
      row.classList.toggle("t-none", ![...row.querySelectorAll(".t-cell")].some(c => !c.hidden))
    chips.replaceChildren(all, ...axis.families.map(f => {
      const press = make("button", { type: "button", "aria-pressed": `${only.has(f.id)}`, "data-family": f.id }, f.name, make("span", { class: "count" }, ` ${per[f.id] || 0}`))
      press.addEventListener("click", () => {
        only[only.has(f.id) ? "delete" : "add"](f.id)
        changed()
        chips.querySelector(`[data-family="${f.id}"]`).focus()
      })
      return press
    }))
    all.setAttribute("aria-pressed", `${!only.size}`)
    hits.textContent = `${counted.size} shown`
  }

  // Arrows: up and down stay in the family, left and right in the year
  const items = () => [...axis.el.querySelectorAll(".t-cell:not([hidden]) li:not([hidden]) > a")]
  const walk = (from, key) => {
    const every = items(), cell = from.closest(".t-cell"), year = from.closest("[data-year]")
    if (key === "Home") return every[0]
    if (key === "End") return every.at(-1)
    if (key === "ArrowLeft" || key === "ArrowRight") {
      const cells = [...year.querySelectorAll(".t-cell:not([hidden])")], to = cells[cells.indexOf(cell) + (key === "ArrowRight" ? 1 : -1)]
      return to && to.querySelector("li:not([hidden]) > a")
    }
    const mine = every.filter(a => a.closest(".t-cell").dataset.family === cell.dataset.family)
    return mine[mine.indexOf(from) + (key === "ArrowDown" ? 1 : -1)]
  }
  view.addEventListener("keydown", e => {
    const from = e.target.closest(".t-cell li > a")
    if (!from || !/^(Arrow|Home$|End$)/.test(e.key) || e.ctrlKey || e.metaKey || e.altKey) return
    const to = walk(from, e.key)
    e.preventDefault()
    if (to) to.focus()
  })

  view.prepend(bar, chips)
  view.classList.add("live")
  restore()
  hear(() => { restore(); draw() })
  draw()
  const year = /^#y\d{4}$/.test(location.hash) && document.getElementById(location.hash.slice(1))
  if (year) year.scrollIntoView()
})()
