// Name what the theme leaves nameless for a screen reader.
;(() => {
  const name = (selector, label) => {
    for (const el of document.querySelectorAll(selector))
      if (!el.hasAttribute("aria-label")) el.setAttribute("aria-label", label(el))
  }
  const all = () => {
    name("a.md-annotation__index", el => {
      const id = el.querySelector("[data-md-annotation-id]")
      return `Note ${id ? id.dataset.mdAnnotationId : ""}`.trim()
    })
    name(".md-typeset .highlight pre, .md-typeset pre > code[tabindex], .md-typeset__scrollwrap[tabindex]", () => "Code")
    for (const el of document.querySelectorAll(".md-typeset__table, .md-typeset .highlight pre > code")) {
      const box = el.tagName === "CODE" ? el : el.parentElement
      if (box.scrollWidth > box.clientWidth && !box.hasAttribute("tabindex")) box.tabIndex = 0
    }
  }
  let due = 0
  const soon = () => { if (!due) due = requestAnimationFrame(() => { due = 0; all() }) }
  document$.subscribe(soon)
  new MutationObserver(soon).observe(document.documentElement, { childList: true, subtree: true })
})()
