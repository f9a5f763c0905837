// A page of the path: the guess is compared with the answer, and the rest appears.
// Without this script the rest unfolds by itself.
document$.subscribe(({ body }) => {
  const form = body.querySelector("form.guess"), rest = body.querySelector("details.reveal")
  if (!form || !rest || form.dataset.live) return
  form.dataset.live = "1"
  const short = x => String(+x.toPrecision(4))
  form.addEventListener("submit", e => {
    e.preventDefault()
    const { answer, unit } = form.dataset, right = +answer
    const said = form.querySelector("input").value.trim()
    const off = said === "" ? null : +said / right
    const words = off === null ? "" : Math.abs(off - 1) < .02 ? `You said ${said}: right.`
      : off > .8 && off < 1.25 ? `You said ${said}: close.`
      : `You said ${said}, ${off > 1 ? `${short(off)} times too much` : off === 0 ? "and it is not nothing" : `${short(1 / off)} times too little`}.`
    form.querySelector("output").textContent = `${words} It is ${short(right)} ${unit}.`.trim()
    rest.open = true
    const figure = rest.querySelector("figure.replay")
    if (figure?.replay && !matchMedia("(prefers-reduced-motion: reduce)").matches) {
      figure.replay.seek(0)
      figure.replay.start()
    }
  })
})
