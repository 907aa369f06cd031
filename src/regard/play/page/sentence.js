// Attention from every word of a sentence to every other, in up to four heads.
//
// Each word is a vector of WIDTH: PLACE features are left to the positions, the others are drawn from
// the word's letters, so that the same word is the same vector. Each head projects to INNER features.
import { normalMatrix, normals } from "./random.js";
import { attend, layerNorm, lower, times } from "./scores.js";
import { sinusoid } from "./model.js";

export const WIDTH = 48;
export const INNER = 16;
export const PLACE = 16;
export const MOST_WORDS = 16;
// Bilinear and low-rank scores are scaled dot here: the head's projections are their factors.
export const SENTENCE_NAMES = ["dot", "scaled_dot", "cosine", "gaussian", "additive", "gatv2", "gat"];
export const HEADS = ["same", "before", "after", "random"];
const PLACE_GAIN = 3.7; // sharp at amplitude 1, drowned far below it
const CONTENT_GAIN = 1.3;

// Words and Chinese letters; a sentence that is too long is cut.
export function wordsOf(text) {
  const found = text.match(/\p{Script=Han}|[\p{L}\p{N}\p{M}'’-]+|[^\s\p{L}\p{N}]/gu) ?? [];
  return found.slice(0, MOST_WORDS);
}

export function embed(words, state) {
  return words.map((word, position) => {
    const content = normals(`${state.seed}/word ${word.toLowerCase()}`, WIDTH - PLACE);
    const waves = sinusoid(position, WIDTH);
    return waves.map((wave, i) => state.pos * wave + (i < PLACE ? 0 : content[i - PLACE]));
  });
}

// A projection (INNER, WIDTH) that reads the features of place, turned back by `turn` positions.
function placeReader(turn) {
  return Array.from({ length: INNER }, (_, row) => {
    const found = new Array(WIDTH).fill(0), pair = row - (row % 2);
    const angle = turn * 10000 ** (-pair / WIDTH);
    // sin(a - t) = sin a cos t - cos a sin t, cos(a - t) = sin a sin t + cos a cos t
    found[row] = PLACE_GAIN * Math.cos(angle);
    found[row % 2 ? pair : pair + 1] = PLACE_GAIN * Math.sin(angle) * (row % 2 ? 1 : -1);
    return found;
  });
}

function contentReader(name) {
  const scale = CONTENT_GAIN * (WIDTH - PLACE) ** -0.5;
  return normalMatrix(name, INNER, WIDTH - PLACE, scale)
    .map((row) => [...new Array(PLACE).fill(0), ...row]);
}

// What a head reads of a query and of a key, and its vectors for the pairwise scores.
export function headOf(kind, seed) {
  const vector = (part) => normals(`${seed}/head ${kind}/${part}`, INNER, (INNER * 0.52) ** -0.5);
  const own = { v: vector("v"), u: vector("u"), w: vector("w") };
  const content = contentReader(`${seed}/head ${kind}/query`);
  switch (kind) {
    case "same": return { ...own, query: content, key: content };
    case "before": return { ...own, query: placeReader(1), key: placeReader(0) };
    case "after": return { ...own, query: placeReader(-1), key: placeReader(0) };
    default: return { ...own, query: content, key: contentReader(`${seed}/head ${kind}/key`) };
  }
}

const EYE = Array.from({ length: INNER }, (_, i) =>
  Array.from({ length: INNER }, (_, j) => Number(i === j)));

// {words, vectors, heads: [{kind, scores, weights, entropy}]}, each of them by query, then by key.
export function readSentence(state) {
  const words = wordsOf(state.text), vectors = embed(words, state);
  if (words.length === 0) return { words, vectors, heads: [] };
  const seen = state.ln ? vectors.map((x) => layerNorm(x).y) : vectors;
  const name = SENTENCE_NAMES.includes(state.score) ? state.score : "scaled_dot";
  const options = { temperature: state.t, normalized: false, chosen: 0 };
  const heads = HEADS.slice(0, state.heads).map((kind) => {
    const head = headOf(kind, state.seed);
    const keys = seen.map((x) => times(head.key, x));
    const own = { query: EYE, key: EYE, v: head.v, u: head.u, w: head.w };
    const lowered = lower(name, keys, own, state.h * INNER ** 0.25);
    const rows = seen.map((x) => attend(lowered, times(head.query, x), keys, options));
    return {
      kind,
      scores: rows.map((row) => row.scores),
      weights: rows.map((row) => row.weights),
      entropy: rows.map((row) => row.entropy),
    };
  });
  return { words, vectors, name, heads };
}
