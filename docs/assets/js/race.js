// A click on a name of the legend hides or shows its line in every plot; the
// choice is kept in the address, so that a link shows the same.
document$.subscribe(({ body }) => {
  const buttons = [...body.querySelectorAll(".race-key button")]
  if (!buttons.length) return
  const hidden = new Set(
    (new URLSearchParams(location.search).get("hide") || "").split(",").filter(Boolean)
  )
  const show = () => {
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.line)))
    }
    for (const line of body.querySelectorAll("svg.race g[data-line]")) {
      line.classList.toggle("off", hidden.has(line.dataset.line))
    }
  }
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const line = button.dataset.line
      if (!hidden.delete(line)) hidden.add(line)
      const query = new URLSearchParams(location.search)
      hidden.size ? query.set("hide", [...hidden].join(",")) : query.delete("hide")
      const said = query.toString()
      history.replaceState(history.state, "", (said ? `?${said}` : location.pathname) + location.hash)
      show()
    })
  }
  show()
})
