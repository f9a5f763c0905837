// Render every formula of the page with KaTeX.
document$.subscribe(({ body }) => {
  for (const el of body.querySelectorAll(".arithmatex")) {
    const tex = el.textContent.trim().replace(/^\\[(\[]|\\[)\]]$/g, "")
    katex.render(tex, el, { displayMode: el.tagName === "DIV", throwOnError: false })
  }
})
