// A search for the exact name of a technique, a system or a word puts it first:
// the index weighs words, and knows no names. The names load with the search.
;(() => {
  const input = document.querySelector(".md-search__input")
  const list = document.querySelector(".md-search-result__list")
  if (!input || !list) return
  const { base } = JSON.parse(document.getElementById("__config").textContent)
  const root = new URL(`${base.replace(/\/$/, "")}/`, location.href)
  const plain = text => text.toLowerCase().replace(/[-\s]+/g, " ").trim()
  let named // name -> entries

  const item = ([title, says, to]) => {
    const li = document.createElement("li")
    li.className = "md-search-result__item"
    const a = li.appendChild(document.createElement("a"))
    a.className = "md-search-result__link"
    a.href = new URL(to, root).href
    a.tabIndex = -1
    const article = a.appendChild(document.createElement("article"))
    article.className = "md-search-result__article md-typeset"
    article.appendChild(document.createElement("h1")).textContent = title
    article.appendChild(document.createElement("p")).textContent = says
    return li
  }
  const of = (li, [, , to]) => {
    const link = li.querySelector("a.md-search-result__link")
    if (!link) return false
    const [here, there] = [new URL(link.href), new URL(to, root)]
    return here.pathname === there.pathname && (!there.hash || here.hash === there.hash)
  }
  const promote = () => {
    const found = (named && named.get(plain(input.value))) || []
    if (!found.length) return
    watch.disconnect()
    const first = found.map(entry => [...list.children].find(li => of(li, entry)) || item(entry))
    list.prepend(...first)
    first.forEach((li, i) => li.querySelector("article").setAttribute("data-md-score", 1e12 - i))
    watch.takeRecords()
    watch.observe(list, { childList: true })
  }
  const watch = new MutationObserver(promote)
  const load = () => {
    if (named) return
    named = new Map()
    const script = document.createElement("script")
    script.src = new URL("assets/js/names.js", root).href
    script.onload = () => {
      for (const entry of window.atlasNames)
        for (const name of new Set(entry[3].map(plain)))
          named.set(name, [...(named.get(name) || []), entry])
      promote()
    }
    document.head.append(script)
  }
  watch.observe(list, { childList: true })
  input.addEventListener("focus", load)
  input.addEventListener("keyup", load)
  if (document.activeElement === input) load()
})()
