// Small tools. Names in a record are not trusted: they enter the page as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const name = (text, most = 0) => el("bdi", { class: "name", title: visible(text) }, most ? shortened(text, most) : visible(text));

// Invisible characters, some of which reverse the direction of a line, are shown as code points.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
const visible = (text) => text.replace(HIDDEN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);

// Leaves out the middle, since both ends of a module's path tell it apart. Wide letters count as two.
const WIDE = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{1f300}-\u{1faff}\u{20000}-\u{3fffd}]/u;
const places = (signs) => signs.reduce((sum, one) => sum + (WIDE.test(one) ? 2 : 1), 0);
function shortened(text, most) {
  const signs = [...visible(text)];
  if (places(signs) <= most) return signs.join("");
  const head = [], tail = [];
  for (let i = 0; places(head) + places([signs[i]]) <= (most - 1) / 3; i++) head.push(signs[i]);
  for (let i = signs.length - 1; places(head) + places(tail) + places([signs[i]]) <= most - 1; i--) tail.unshift(signs[i]);
  return `${head.join("")}…${tail.join("")}`;
}

// Numbers of the record: null means not measured, "inf" and "-inf" are infinities.
const real = (x) => x === null || x === undefined ? NaN : x === "inf" ? Infinity : x === "-inf" ? -Infinity : x;
function shown(x) {
  x = real(x);
  if (Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e5 || size < 1e-3) text = x.toExponential(1).replace("e+", "e");
  else if (size >= 99.95 || Number.isInteger(x)) text = x.toFixed(0);
  else text = size >= 9.995 ? x.toFixed(1) : size >= 0.0995 ? x.toFixed(2) : String(Number(x.toPrecision(2)));
  return text.replaceAll("-", "−");
}
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
function ranges(numbers) {
  const found = [];
  for (const n of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = found.at(-1);
    if (last && n === last[1] + 1) last[1] = n;
    else found.push([n, n]);
  }
  return found.map(([a, b]) => a === b ? `${a}` : `${a}–${b}`).join(", ");
}

// A scale from numbers to 0..1, logarithmic if they are all positive and far apart.
function scaleOf(values) {
  const finite = values.map(real).filter(Number.isFinite);
  let low = Infinity, high = -Infinity;
  for (const x of finite) { if (x < low) low = x; if (x > high) high = x; }
  if (!finite.length) return { low: 0, high: 1, log: false, at: () => 0.5, empty: true };
  const log = low > 0 && high / low > 50;
  const warp = log ? Math.log : (x) => x;
  const span = warp(high) - warp(low);
  const at = (x) => x === Infinity ? 1 : x === -Infinity ? 0 : span > 0 ? (warp(x) - warp(low)) / span : 0.5;
  return { low, high, log, at, empty: false };
}
const css = (variable) => getComputedStyle(root).getPropertyValue(variable).trim();

const SIGNS = {
  failure: "M4 4l8 8M12 4l-8 8",
  warning: "M8 3v6.2M8 12.6v.2",
  note: "M8 7.2v5.6M8 3.6v.2",
  good: "M3 8.4l3.4 3.6L13 4.4",
};
const sign = (kind) => svg("svg", { class: "sign", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: SIGNS[kind] }));
const SEVERITIES = ["failure", "warning", "note"];
