// From the state of the page to vectors, parameters and results.
import { normalMatrix, normals } from "./random.js";
import { attend, decide, layerNorm, lower, NAMES } from "./scores.js";

export const HIDDEN = 16;
export const REACH = 3; // the plane shows -REACH to REACH
const TANH_POWER = 0.52; // E[tanh(x)^2] and E[LeakyReLU(x)^2] for x ~ N(0, 2), as the library has them
const LEAKY_POWER = 1.04;
const GAT_POWER = 1.04 - 0.64 / Math.PI;

// Sines and cosines of a position (d), as `regard.nn.Sinusoidal` adds them.
export function sinusoid(position, d) {
  return Array.from({ length: d }, (_, i) => {
    const angle = position * 10000 ** (-(i - (i % 2)) / d);
    return i % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

// Parameters as the library draws them: scores of variance 1 for inputs of unit variance.
export function drawParameters(name, d, seed) {
  const matrix = (part, rows) => normalMatrix(`${seed}/${name}/${part}`, rows, d, d ** -0.5);
  const vector = (part, power) => normals(`${seed}/${name}/${part}`, HIDDEN, (HIDDEN * power) ** -0.5);
  const sides = (rows) => ({ query: matrix("query", rows), key: matrix("key", rows) });
  switch (name) {
    case "bilinear": return { weight: normalMatrix(`${seed}/${name}`, d, d, 1 / d) };
    case "low_rank": return sides(Math.max(1, Math.floor(d / 4)));
    case "additive": return { ...sides(HIDDEN), v: vector("v", TANH_POWER) };
    case "gatv2": return { ...sides(HIDDEN), v: vector("v", LEAKY_POWER) };
    case "gat": return { ...sides(HIDDEN), u: vector("u", GAT_POWER), w: vector("w", GAT_POWER) };
    default: return null;
  }
}

const drawn = new Map();
export function parametersOf(name, d, seed) {
  const label = `${name}/${d}/${seed}`;
  if (!drawn.has(label)) {
    if (drawn.size > 200) drawn.clear();
    drawn.set(label, drawParameters(name, d, seed));
  }
  return drawn.get(label);
}

export const bandwidthOf = (state, d) => state.h * d ** 0.25;

// The vectors that the scores get. A place in the plane is the first two entries; the others are
// drawn by name, and stay when the place moves.
export function vectorsOf(state) {
  const { d } = state;
  const whole = (name, [x, y], factor, position) => {
    const others = normals(`${state.seed}/${name}`, d - 2);
    const waves = sinusoid(position, d);
    return [x, y, ...others].map((entry, i) => factor * entry + state.pos * waves[i]);
  };
  const keys = state.k.map((place, i) =>
    whole(`key ${i}`, place, state.kn * (i === state.who ? state.loud : 1), i));
  const start = whole("query", [0, 0], state.qn, 0);
  const query = start.map((entry, i) => (i < 2 ? entry + state.qn * state.q[i] : entry));
  return { query, start, keys };
}

// What scores and maps of these keys depend on: everything but the query and what is looked at.
export function contentOf(state) {
  const { q, lang, chapter, score, key, view, heads, text, ...rest } = state;
  return JSON.stringify(rest);
}

// The vectors, and every score lowered for the keys; that is kept while only the query moves.
let last = { content: null };
export function sceneOf(state) {
  const vectors = vectorsOf(state), content = contentOf(state);
  if (last.content !== content) {
    const keys = state.ln ? vectors.keys.map((key) => layerNorm(key).y) : vectors.keys;
    const lowered = Object.fromEntries(NAMES.map((name) =>
      [name, lower(name, keys, parametersOf(name, state.d, state.seed), bandwidthOf(state, state.d))]));
    last = { content, lowered };
  }
  return { ...vectors, ...last };
}

// Every score's answer, by name. The values are the places of the keys.
export function results(state, scene = sceneOf(state)) {
  const options = { temperature: state.t, normalized: state.ln, chosen: state.key };
  return Object.fromEntries(NAMES.map((name) =>
    [name, attend(scene.lowered[name], scene.query, state.k, options)]));
}

// The decision map of one score, `size` places along each edge.
export function decisions(name, state, size, scene = sceneOf(state)) {
  const step = (axis) => scene.start.map((_, i) => (i === axis ? state.qn : 0));
  return decide(scene.lowered[name], {
    start: scene.start,
    along: step(0),
    up: step(1),
    ticks: Array.from({ length: size }, (_, i) => REACH * ((2 * i + 1) / size - 1)),
    keys: state.k.length,
    temperature: state.t,
    normalized: state.ln,
  });
}
