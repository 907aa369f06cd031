// The plane: points that are dragged, or moved with the keys.
import { COLOURS, letterColour, make, percent, put } from "./draw.js";
import { clampPlace, LETTERS } from "./state.js";
import { REACH } from "./model.js";
import { say } from "./text.js";

const STEP = 0.1, LEAP = 0.5, GRASP = 0.42;
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

function shape(tag, attributes = {}, ...children) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  found.append(...children);
  return found;
}

const set = (element, attributes) => {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
};

function grid() {
  const found = shape("g", { class: "grid" });
  for (let at = -REACH + 1; at < REACH; at++) {
    found.append(shape("line", { x1: at, x2: at, y1: -REACH, y2: REACH, class: at ? "" : "axis" }));
    found.append(shape("line", { y1: at, y2: at, x1: -REACH, x2: REACH, class: at ? "" : "axis" }));
  }
  return found;
}

function point(name, label, colour, ink) {
  const halo = shape("circle", { class: "halo", fill: colour });
  const kind = name === "q" ? "query" : "key";
  const found = shape("g", { class: `point ${kind}`, tabindex: 0, role: "button", "data-name": name },
    shape("circle", { class: "grasp", r: GRASP }), halo,
    shape("circle", { class: "ring", r: 0.27 }),
    shape("circle", { class: "dot", r: 0.19, fill: colour }),
    shape("text", { y: 0.075, fill: ink }));
  found.lastChild.textContent = label;
  return { group: found, halo };
}

// Everything that is drawn, from the back to the front; all keys are made, and hidden where there are fewer.
function drawParts(svg, strip) {
  set(svg, { viewBox: `${-REACH} ${-REACH} ${2 * REACH} ${2 * REACH}` });
  const links = shape("g"), points = shape("g");
  const query = point("q", "q", "var(--ink)", "var(--card)");
  const keys = COLOURS.map((colour, i) => {
    const part = make("span", { class: "part" }), line = shape("line", { class: "link", stroke: colour });
    part.style.background = colour;
    part.style.color = letterColour(i);
    strip.append(part);
    links.append(line);
    return { ...point(String(i), LETTERS[i], colour, letterColour(i)), part, line };
  });
  points.append(...keys.map(({ group }) => group), query.group);
  const others = {
    arrow: shape("line", { class: "arrow", x1: 0, y1: 0 }),
    output: shape("path", { class: "output", d: "M0 -.13L.13 0L0 .13L-.13 0Z" }),
    loud: shape("text", { class: "loud" }),
    hint: shape("text", { class: "drag-me" }),
  };
  svg.append(grid(), links, others.arrow, others.output, points, others.loud, others.hint);
  return { query, keys, ...others };
}

// `where(name)` is the place of a point; `go(name, place)` moves it; a name is "q" or a key's number.
function followPointer(svg, query, where, go, choose) {
  let held = null;
  const placeOf = (event) => {
    const { left, top, width, height } = svg.getBoundingClientRect();
    const shares = [(event.clientX - left) / width - 0.5, 0.5 - (event.clientY - top) / height];
    return shares.map((share) => share * 2 * REACH);
  };
  svg.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const group = event.target.closest(".point");
    // A finger beside the points scrolls the page; a mouse brings the query there.
    if (!group && event.pointerType !== "mouse") return;
    const name = group ? group.dataset.name : "q", at = placeOf(event), from = where(name);
    held = { name, off: group ? [from[0] - at[0], from[1] - at[1]] : [0, 0], id: event.pointerId };
    svg.setPointerCapture(event.pointerId);
    (group ?? query).focus({ preventScroll: true });
    choose(name);
    if (!group) go(name, at);
    event.preventDefault();
  });
  svg.addEventListener("pointermove", (event) => {
    if (!held || event.pointerId !== held.id) return;
    const at = placeOf(event);
    go(held.name, [at[0] + held.off[0], at[1] + held.off[1]]);
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
    svg.addEventListener(end, () => { held = null; });
  }
  // `touch-action` does not reach parts of a drawing: without this the page would scroll away.
  const keep = (event) => { if (event.target.closest(".point")) event.preventDefault(); };
  svg.addEventListener("touchstart", keep, { passive: false });
}

function followKeys(svg, where, go, choose) {
  svg.addEventListener("keydown", (event) => {
    const group = event.target.closest(".point"), way = ARROWS[event.key];
    if (!group || !way || event.ctrlKey || event.metaKey || event.altKey) return;
    const name = group.dataset.name, from = where(name), far = event.shiftKey ? LEAP : STEP;
    go(name, [from[0] + far * way[0], from[1] + far * way[1]]);
    event.preventDefault();
  });
  svg.addEventListener("focusin", (event) => {
    const group = event.target.closest(".point");
    if (group) choose(group.dataset.name);
  });
}

function stand(lang, group, name, [x, y]) {
  set(group, {
    transform: `translate(${x} ${-y})`,
    "aria-roledescription": say(lang, "movable"),
    "aria-label": say(lang, "at", { name, x, y }),
  });
}

// One key: its place, and how much of the weight it has.
function showKey(parts, i, state, weight) {
  const { group, halo, line, part } = parts, shown = i < state.k.length;
  group.style.display = line.style.display = part.style.display = shown ? "" : "none";
  if (!shown) return;
  const [x, y] = state.k[i];
  stand(state.lang, group, say(state.lang, "key", { letter: LETTERS[i] }), state.k[i]);
  set(group, { "aria-pressed": i === state.key });
  set(halo, { r: 0.19 + 0.33 * Math.sqrt(weight) });
  set(line, { x1: state.q[0], y1: -state.q[1], x2: x, y2: -y });
  set(line, { "stroke-width": 0.012 + 0.13 * weight, opacity: 0.25 + 0.75 * weight });
  part.style.flexGrow = weight;
  put(part, weight > 0.16 ? `${LETTERS[i]} ${percent(weight)}` : weight > 0.05 ? LETTERS[i] : "");
}

// `move(name, place)` and `choose(name)` tell the page what was done.
export function makePlane({ svg, strip, move, choose }) {
  const { query, keys, arrow, output, loud, hint } = drawParts(svg, strip);
  let state;
  const where = (name) => (name === "q" ? state.q : state.k[name]);
  const go = (name, place) => {
    hint.textContent = "";
    svg.classList.add("touched");
    move(name, place.map(clampPlace));
  };
  followPointer(svg, query.group, where, go, choose);
  followKeys(svg, where, go, choose);

  return (now, result) => {
    state = now;
    const [x, y] = state.q, loudest = state.k[state.who];
    stand(state.lang, query.group, say(state.lang, "query"), state.q);
    keys.forEach((parts, i) => showKey(parts, i, state, result.weights[i]));
    set(arrow, { x2: x, y2: -y });
    set(output, { transform: `translate(${result.output[0]} ${-result.output[1]})` });
    put(loud, state.loud > 1 ? `×${state.loud}` : "");
    set(loud, { x: loudest[0] + 0.28, y: -loudest[1] - 0.2 });
    if (svg.classList.contains("touched")) return;
    put(hint, say(state.lang, "drag_me"));
    // Above the query or below, where it hides no key.
    const room = (far) => Math.min(...state.k.map((key) => Math.hypot(key[0] - x, key[1] - y - far)));
    set(hint, { x: Math.min(x, 2.2), y: room(0.45) >= room(-0.45) ? -y - 0.38 : -y + 0.52 });
  };
}
