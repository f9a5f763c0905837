// Show one of several sections at a time, chosen from a list; without this
// script they stand one below the other.
document$.subscribe(({ body }) => {
  for (const box of body.querySelectorAll(".choices:not(.choices-live)")) {
    const all = [...box.querySelectorAll(":scope > .choice")]
    if (all.length < 2) continue
    box.classList.add("choices-live")
    const label = document.createElement("label")
    label.className = "choices-pick"
    label.textContent = `${box.dataset.label} `
    const pick = label.appendChild(document.createElement("select"))
    all.forEach((section, i) => {
      const heading = section.querySelector("h3").cloneNode(true)
      heading.querySelectorAll(".headerlink").forEach(a => a.remove())
      pick.add(new Option(heading.textContent.trim(), i))
    })
    const show = i => all.forEach((section, k) => { section.hidden = k !== i })
    const follow = () => {
      const at = all.findIndex(s => location.hash && s.querySelector(CSS.escape ? `#${CSS.escape(location.hash.slice(1))}` : location.hash))
      if (at >= 0) { pick.value = at; show(at); all[at].scrollIntoView() }
    }
    pick.addEventListener("change", () => show(+pick.value))
    addEventListener("hashchange", follow)
    box.prepend(label)
    show(0)
    if (location.hash.length > 1) follow()
  }
})
