// Python's own words, in as much of JavaScript as the atlas needs.
// --- arithmetic: integers are exact up to 2**53
const $refuse = (name, x, why) => { throw new RangeError(name + " = " + x + ": " + why); };
const $number = (name, x) => { if (!Number.isFinite(x)) $refuse(name, x, "not a number"); };
const $whole = (name, x) => { if (!Number.isSafeInteger(x)) $refuse(name, x, "not a whole number below 2**53"); };
const $bool = (name, x) => { if (typeof x !== "boolean") $refuse(name, x, "neither true nor false"); };
const $one = (name, x, all) => { if (!all.includes(x)) $refuse(name, x, "expected one of " + all.join(", ")); };
const $least = (name, x, least) => { if (!(x >= least)) $refuse(name, x, "must be " + least + " or more"); };
const $below = (name, x, other, limit) => {
  if (!(0 <= x && x < limit)) $refuse(name, x, "must be from 0 to " + (limit - 1) + ", as " + other + " = " + limit);
};
const $shape = (name, x, shape) => {
  if (Array.isArray(shape)) return $one(name, x, shape);
  if (typeof shape === "number") return (shape === 0 ? $whole : $number)(name, x);
  if (typeof shape === "boolean") return $bool(name, x);
  if (typeof x !== "object" || x === null) $refuse(name, x, "not a record");
  for (const field of Object.keys(shape)) $shape(name + "." + field, x[field], shape[field]);
};
const $mod = (a, b) => { const rest = a % b; return rest !== 0 && (rest < 0) !== (b < 0) ? rest + b : rest; };
const $div = (a, b) => { const rest = a % b; return Math.round((a - rest) / b) - (rest !== 0 && (rest < 0) !== (b < 0) ? 1 : 0); };
const $pow = (a, b) => {
  if (!Number.isInteger(a) || !Number.isInteger(b) || b < 0) return Math.pow(a, b);
  let result = 1;
  for (; b > 0; b = Math.floor(b / 2), a *= a) if (b % 2 === 1) result *= a;
  return result;
};
const $str = x => x === null || x === undefined ? "None" : x === true ? "True" : x === false ? "False" : typeof x.__str__ === "function" ? x.__str__() : String(x);
const $truth = x => Array.isArray(x) ? x.length > 0 : x instanceof Map || x instanceof Set ? x.size > 0 : Boolean(x);
// --- values
const $object = x => x instanceof Map ? Object.fromEntries(x) : x;
const $plain = x => x !== null && typeof x === "object" && !Array.isArray(x) && typeof x[Symbol.iterator] !== "function";
const $iter = x => x instanceof Map ? x.keys() : $plain(x) ? Object.values(x) : x;
const $list = x => Array.isArray(x) ? x : [...$iter(x)];
const $fields = x => x.$p || Object.keys(x);
const $and = (...all) => { let x; for (const f of all) { x = f(); if (!$truth(x)) break; } return x; };
const $or = (...all) => { let x; for (const f of all) { x = f(); if ($truth(x)) break; } return x; };
const $add = (a, b) => Array.isArray(a) ? [...a, ...b] : a + b;
const $union = (a, b) => a instanceof Map ? new Map([...a, ...b]) : a instanceof Set ? new Set([...a, ...b]) : [a, b];
const $in = (x, all) => typeof all === "string" || Array.isArray(all) ? all.includes(x) : all instanceof Map || all instanceof Set ? all.has(x) : x in all;
const $at = (x, i) => {
  const found = x instanceof Map ? x.get(i) : typeof i === "number" && (Array.isArray(x) || typeof x === "string") ? x[i < 0 ? x.length + i : i] : x[i];
  if (found === undefined) throw new RangeError("nothing at " + i);
  return found;
};
const $set = (x, i, v) => { if (x instanceof Map) x.set(i, v); else x[i < 0 ? x.length + i : i] = v; };
const $record = (name, fields, defaults) => {
  const made = class { constructor(...given) { fields.forEach((f, i) => {
    this[f] = given[i] === undefined ? defaults[i] : given[i];
    if (this[f] === undefined) throw new TypeError(name + " needs " + f);
  }); } };
  Object.defineProperty(made, "name", { value: name });
  made.$p = fields;
  return made;
};
const $replace = (x, more) => Object.assign(Object.create(Object.getPrototypeOf(x)), x, more);
const $call = (fn, given, named) => {
  if (fn.$named) return fn(...given, named);
  const all = [...given];
  for (const [name, value] of Object.entries(named)) {
    const at = fn.$p ? fn.$p.indexOf(name) : -1;
    if (at < 0) throw new TypeError("no argument " + name);
    all[at] = value;
  }
  return /^class/.test(Function.prototype.toString.call(fn)) ? new fn(...all) : fn(...all);
};
const $cached = fn => {
  const kept = new Map();
  return (a, b) => {
    if (!kept.has(a)) kept.set(a, new Map());
    const own = kept.get(a);
    if (!own.has(b)) own.set(b, fn(a, b));
    return own.get(b);
  };
};
const $fixed = (x, n) => {  // ties to even, as Python has it
  const near = x.toFixed(n), [, rest] = (x.toFixed(Math.min(100, n + 40)) + ".").split(".");
  if (!/^50*$/.test(rest.slice(n)) || Number(near[near.length - 1]) % 2 === 0) return near;
  const half = Math.pow(10, -n) / 2;
  return (x > 0 ? x - half : x + half).toFixed(n);
};
const $digits = (x, n) => {  // as Python's g
  if (x === 0) return "0";
  const power = Number(x.toExponential(n - 1).split("e")[1]);
  if (power < -4 || power >= n) {
    const [digits, e] = x.toExponential(n - 1).split("e");
    const short = digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
    return short + "e" + e[0] + e.slice(1).padStart(2, "0");
  }
  const fixed = $fixed(x, Math.max(0, n - 1 - power));
  return fixed.includes(".") ? fixed.replace(/\.?0+$/, "") : fixed;
};
const $format = (x, form) => {
  const [, comma, places, kind] = /^(,?)(?:\.(\d+))?([gf%]?)$/.exec(form);
  if (kind === "g") return $digits(x, Number(places));
  if (kind === "%") return $fixed(x * 100, Number(places)) + "%";
  const text = places === undefined ? String(x) : $fixed(x, Number(places));
  return comma ? text.replace(/\B(?=(\d{3})+(?!\d))/g, ",") : text;
};
const $repr = x => typeof x === "string" ? "'" + x + "'" : $str(x);
const $ends = (given, way) => {
  const named = $plain(given[given.length - 1]) && given[given.length - 1].$named ? given.pop() : {};
  const all = given.length === 1 ? $list(given[0]) : given;
  if (!all.length) { if ("default" in named) return named.default; throw new RangeError("of nothing"); }
  const key = named.key || (x => x);
  return all.reduce((best, x) => way(key(x), key(best)) ? x : best);
};
const $named = fn => { fn.$named = true; return fn; };
const $kinds = kind => Array.isArray(kind) ? kind.flatMap($kinds) : [kind];
const $is = (x, kind) => kind === $b.int ? Number.isInteger(x) : kind === $b.str ? typeof x === "string" : kind === $b.float ? typeof x === "number" : x instanceof kind;
const $b = {
  abs: Math.abs,
  all: x => $list(x).every($truth),
  any: x => $list(x).some($truth),
  bool: $truth,
  dict: x => x === undefined ? new Map() : x instanceof Map ? new Map(x) : new Map($plain(x) ? Object.entries(x) : $list(x)),
  enumerate: x => $list(x).map((v, i) => [i, v]),
  float: x => x === "inf" ? Infinity : Number(x),
  getattr: (x, name) => x[name],
  int: x => Math.trunc(Number(x)),
  isinstance: (x, kind) => $kinds(kind).some(k => $is(x, k)),
  len: x => x.length === undefined ? x.size : x.length,
  list: x => x === undefined ? [] : [...$iter(x)],
  map: (fn, ...all) => { const rows = all.map($list); return rows[0].map((_, i) => fn(...rows.map(r => r[i]))); },
  max: $named((...given) => $ends($tail(given), (a, b) => a > b)),
  min: $named((...given) => $ends($tail(given), (a, b) => a < b)),
  next: (x, otherwise) => { const got = x[Symbol.iterator]().next(); return got.done ? otherwise : got.value; },
  range: (a, b, step = 1) => { const [from, to] = b === undefined ? [0, a] : [a, b]; const out = []; for (let i = from; i < to; i += step) out.push(i); return out; },
  reversed: x => [...$list(x)].reverse(),
  round: x => { const low = Math.floor(x), rest = x - low; return rest > 0.5 || (rest === 0.5 && low % 2 !== 0) ? low + 1 : low; },
  set: x => new Set(x === undefined ? [] : $iter(x)),
  sorted: $named((x, named = {}) => { const key = named.key || (v => v); return [...$iter(x)].sort((a, b) => { const p = key(a), q = key(b); return p < q ? -1 : p > q ? 1 : 0; }); }),
  str: $str,
  sum: x => { let all = 0; for (const v of $iter(x)) all += Number(v); return all; },
  tuple: x => x === undefined ? [] : [...$iter(x)],
  type: x => x.constructor,
  zip: $named((...given) => { const rows = $tail(given, true).map($list); const n = Math.min(...rows.map(r => r.length)); return Array.from({ length: n }, (_, i) => rows.map(r => r[i])); }),
};
// A call with names hands them over last, as a plain object: key, default, strict.
function $tail(given, drop = false) {
  const last = given[given.length - 1];
  if ($plain(last) && Object.keys(last).every(k => ["key", "default", "strict"].includes(k)) && Object.keys(last).length) {
    return drop ? given.slice(0, -1) : [...given.slice(0, -1), { ...last, $named: true }];
  }
  return given;
}
const $methods = {
  append: (x, v) => { x.push(v); },
  count: (x, v) => x.filter(y => y === v).length,
  extend: (x, all) => { x.push(...$iter(all)); },
  fromkeys: (_, all) => new Map($list(all).map(k => [k, null])),
  get: (x, k, otherwise = null) => { const v = x instanceof Map ? x.get(k) : Object.prototype.hasOwnProperty.call(x, k) ? x[k] : undefined; return v === undefined ? otherwise : v; },
  index: (x, v) => x.indexOf(v),
  insert: (x, i, v) => { x.splice(i, 0, v); },
  items: x => x instanceof Map ? [...x.entries()] : Object.entries(x),
  join: (x, all) => $list(all).join(x),
  keys: x => x instanceof Map ? [...x.keys()] : Object.keys(x),
  lower: x => x.toLowerCase(),
  partition: (x, by) => { const i = x.indexOf(by); return i < 0 ? [x, "", ""] : [x.slice(0, i), by, x.slice(i + by.length)]; },
  removeprefix: (x, y) => x.startsWith(y) ? x.slice(y.length) : x,
  removesuffix: (x, y) => x.endsWith(y) ? x.slice(0, x.length - y.length) : x,
  sort: x => { x.sort((a, b) => a < b ? -1 : a > b ? 1 : 0); },
  split: (x, by) => x.split(by),
  startswith: (x, y) => x.startsWith(y),
  upper: x => x.toUpperCase(),
  values: x => x instanceof Map ? [...x.values()] : Object.values(x),
};
const $method = (x, name, ...given) => $methods[name](x, ...given);
const $runtime = {
  ceil: Math.ceil,
  prod: x => $list(x).reduce((a, b) => a * b, 1),
  nearest: (name, known) => "one of " + $list(known).join(", "),
};
const ceil = Math.ceil, ValueError = RangeError;
const $member = (kind, x) => { if (!Object.values(kind).includes(x)) throw new ValueError(x + " is none of " + Object.values(kind).join(", ")); return x; };
const replace = $named((x, named) => $replace(x, named));
const reduce = (fn, all) => $list(all).reduce((a, b) => fn(a, b));
