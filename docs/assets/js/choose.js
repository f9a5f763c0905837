// One question at a time; the answers so far stand in the address, as
// #too-large.dense.state. Without this script all questions stand in turn.
;(() => {
  const box = document.getElementById("choose")
  if (!box) return
  const all = [...box.querySelectorAll("section.ask")]
  const first = all[0]
  const trail = box.querySelector(".trail")
  const tree = document.querySelector("details.tree")
  const by = id => document.getElementById(id)

  const walk = () => {
    const text = decodeURIComponent(location.hash.slice(1))
    const direct = text && all.find(s => s.id === text)
    if (direct) return { at: direct, steps: [], way: null }
    const steps = []
    let at = first, way = []
    for (const answer of text ? text.split(".") : []) {
      const link = at.querySelector(`a[data-answer="${CSS.escape(answer)}"]`)
      if (!link) break
      steps.push({ question: at, link, way: way.join(".") })
      way = [...way, answer]
      at = by(link.dataset.to)
    }
    return { at, steps, way: way.join(".") }
  }

  const show = focus => {
    const { at, steps, way } = walk()
    for (const section of all) section.hidden = section !== at
    for (const link of at.querySelectorAll("a[data-answer]"))
      link.setAttribute("href", way === null ? `#${link.dataset.to}` : `#${way ? `${way}.` : ""}${link.dataset.answer}`)
    const list = document.createElement("ol")
    for (const step of steps) {
      const item = list.appendChild(document.createElement("li"))
      const back = item.appendChild(document.createElement("a"))
      back.href = step.way ? `#${step.way}` : "#start"
      back.textContent = step.question.querySelector("h2").textContent
      item.append(` ${step.link.textContent}`)
    }
    trail.replaceChildren()
    if (steps.length) {
      const back = trail.appendChild(document.createElement("a"))
      back.className = "back"
      back.href = steps.at(-1).way ? `#${steps.at(-1).way}` : "#start"
      back.textContent = "Back one question"
      trail.append(list)
    } else if (way === null) {
      const start = trail.appendChild(document.createElement("a"))
      start.className = "back"
      start.href = "#start"
      start.textContent = "Begin with the first question"
    }
    trail.hidden = !trail.children.length
    for (const link of tree.querySelectorAll("a[data-way]")) {
      const here = link.dataset.way === (way ?? "?")
      if (here) link.setAttribute("aria-current", "step")
      else link.removeAttribute("aria-current")
    }
    if (focus) {
      at.focus({ preventScroll: true })
      if (box.getBoundingClientRect().top < 0) box.scrollIntoView()
    }
  }

  for (const link of tree.querySelectorAll("a[data-way]")) link.href = link.dataset.way ? `#${link.dataset.way}` : "#start"
  tree.open = false
  box.classList.add("choose-live")
  addEventListener("hashchange", () => show(true))
  show(false)
})()
