// The state of a view lives in its address: read it, write it, copy it.
window.permalink = (() => {
  const read = () => new URLSearchParams(location.search || location.hash.slice(1))
  const tidy = params => `${params}`.replaceAll("%2C", ",").replaceAll("%2F", "/")
  // A choice is a step that the back button undoes; typing is not.
  const write = (params, step = true) => {
    const text = tidy(params)
    const to = location.pathname + (text ? `?${text}` : "")
    if (to === location.pathname + location.search) return
    try {
      history[step ? "pushState" : "replaceState"](null, "", to)
    } catch { // some browsers refuse this for files
      location.hash = text
    }
  }
  const hear = act => {
    addEventListener("popstate", act)
    addEventListener("hashchange", act)
  }
  const copy = async text => {
    try {
      await navigator.clipboard.writeText(text)
      return true
    } catch {
      const box = document.body.appendChild(document.createElement("textarea"))
      box.value = text
      box.select()
      const done = document.execCommand("copy")
      box.remove()
      return done
    }
  }
  const make = (tag, attributes = {}, ...inside) => {
    const el = document.createElement(tag)
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) el.addEventListener(name.slice(2), value)
      else if (value === true) el.setAttribute(name, "")
      else if (value !== false && value != null) el.setAttribute(name, value)
    }
    el.append(...inside)
    return el
  }
  const button = () => {
    const said = make("span", { class: "said", role: "status" })
    const press = make("button", { type: "button" }, "Copy link")
    press.addEventListener("click", async () => {
      said.textContent = await copy(location.href) ? "Copied." : "Copy the address of this page."
      setTimeout(() => { said.textContent = "" }, 4000)
    })
    return [press, said]
  }
  return { read, write, hear, make, button }
})()
