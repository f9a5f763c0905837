// What a schedule costs: the same as atlas.schedule.cost and peaks, which a test holds
// it against. A rank does one thing at a time and starts it as soon as it can; a message
// between two ranks takes `message` seconds and disturbs nobody.
var atlasBubble = (() => {
  const KINDS = ["FBW", "GCX", "HDY", "IEZ"]

  // One rank: "stages it holds:two letters for each piece of work".
  const unpack = text => {
    const [stages, letters] = text.split(":")
    const held = stages.split(",").map(Number)
    const work = []
    for (let i = 0; i < letters.length; i += 2) {
      const chunk = KINDS.findIndex(k => k.includes(letters[i]))
      const kind = "FBW"[KINDS[chunk].indexOf(letters[i])]
      work.push({ kind, micro: parseInt(letters[i + 1], 32), stage: held[chunk] })
    }
    return { held, work }
  }

  const schedule = texts => {
    const ranks = texts.map(unpack)
    const every = ranks.flatMap(r => r.work)
    const stages = 1 + Math.max(...every.map(w => w.stage))
    const split = new Set(every.filter(w => w.kind === "W").map(w => `${w.micro} ${w.stage}`))
    const share = ranks.length / stages
    return { ranks, stages, split, share }
  }

  const needs = (w, stages) => {
    if (w.kind === "F") return w.stage > 0 ? [["F", w.micro, w.stage - 1]] : []
    if (w.kind === "W") return [["B", w.micro, w.stage]]
    const found = [["F", w.micro, w.stage]]
    if (w.stage < stages - 1) found.push(["B", w.micro, w.stage + 1])
    return found
  }

  // Seconds are of a rank's whole share of the network.
  const cost = (s, seconds, message) => {
    const lasts = w => s.share * (w.kind === "B" && !s.split.has(`${w.micro} ${w.stage}`)
      ? seconds.B + seconds.W : seconds[w.kind])
    const next = s.ranks.map(() => 0), free = s.ranks.map(() => 0)
    const done = new Map(), placed = s.ranks.map(() => [])
    for (let moved = true; moved;) {
      moved = false
      s.ranks.forEach(({ work }, r) => {
        while (next[r] < work.length) {
          const w = work[next[r]]
          const came = needs(w, s.stages).map(n => done.get(n.join(" ")))
          if (came.includes(undefined)) return
          const start = Math.max(free[r], ...came.map(([t, home]) => t + (home === r ? 0 : message)))
          free[r] = start + lasts(w)
          done.set(`${w.kind} ${w.micro} ${w.stage}`, [free[r], r])
          placed[r].push({ ...w, start, end: free[r] })
          next[r]++
          moved = true
        }
      })
    }
    const makespan = Math.max(...free)
    const busy = placed.map(x => x.reduce((t, w) => t + w.end - w.start, 0))
    const idle = busy.map(t => makespan - t)
    const bubble = idle.reduce((a, b) => a + b, 0) / (makespan * placed.length)
    return { placed, makespan, idle, bubble }
  }

  // Micro-batches of a whole share that each rank holds at once, at most.
  const peaks = s => s.ranks.map(({ work }) => {
    let now = 0, most = 0
    for (const w of work) {
      const last = s.split.has(`${w.micro} ${w.stage}`) ? "W" : "B"
      now += (w.kind === "F") - (w.kind === last)
      most = Math.max(most, now)
    }
    return most * s.share
  })

  const weights = s => s.share * Math.max(...s.ranks.map(r => r.held.length))
  return { schedule, cost, peaks, weights }
})()
