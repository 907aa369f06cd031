// The state of the page, and the link that holds it: `#v=1&chapter=3&d=64&q=1.2,0.5`.
//
// A link names its version, perhaps a chapter to start from, and every field that differs. A link with
// a mistake in it is not used at all.
import { NAMES } from "./scores.js";
import { REACH } from "./model.js";
import { CHAPTERS } from "./chapters.js";

export const VERSION = "1";
export const LETTERS = "ABCDEFGH";
export const DIMENSIONS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
export const FEWEST_KEYS = 2;
const LONGEST_TEXT = 120;
// Where a key that is added stands at first.
export const PLACES = [
  [1.8, 1], [-0.4, 2], [-1.9, 0.7], [-1.3, -1.5], [0.5, -1.9], [2.1, -1], [0.8, 2.4], [-2.4, -0.6],
];

export const START = {
  view: "vectors", lang: "en", chapter: 0,
  score: "scaled_dot", key: 0,
  q: [1.1, -0.2], k: PLACES.slice(0, 5),
  d: 2, t: 1, qn: 1, kn: 1, loud: 1, who: 1, pos: 0, h: 1, ln: false,
  seed: 239, heads: 4,
};
const WORDS = { en: "the cat saw the dog and the dog saw the cat", zh: "猫看见狗，狗也看见猫" };

// Amounts a slider sets, least and most; all but positions go by factors.
export const RANGES = {
  t: [0.05, 20], qn: [0.1, 30], kn: [0.1, 10], loud: [1, 100], pos: [0, 5], h: [0.2, 5],
};

class BadLink extends Error {}

export const round = (x, digits = 2) => Number(x.toFixed(digits)) || 0; // and no -0
export const clampPlace = (x) => round(Math.min(REACH, Math.max(-REACH, x)));

function number(text, [least, most]) {
  const found = /^-?\d{1,6}(\.\d{1,6})?$/.test(text) ? Number(text) : NaN;
  if (!(found >= least && found <= most)) throw new BadLink(text);
  return found;
}

function oneOf(text, allowed) {
  const found = allowed.find((value) => String(value) === text);
  if (found === undefined) throw new BadLink(text);
  return found;
}

function place(text) {
  const found = text.split(",");
  if (found.length !== 2) throw new BadLink(text);
  return found.map((part) => clampPlace(number(part, [-REACH, REACH])));
}

const amount = (name) => ({
  write: (value) => String(round(value, 3)),
  read: (text) => number(text, RANGES[name]),
});
const whole = (least, most) => ({
  write: String,
  read: (text) => Math.trunc(number(oneOf(text, [String(parseInt(text, 10))]), [least, most])),
});
const choice = (...allowed) => ({ write: String, read: (text) => oneOf(text, allowed) });
const letter = {
  write: (index) => LETTERS[index],
  read: (text) => LETTERS.indexOf(oneOf(text, [...LETTERS])),
};

const FIELDS = {
  chapter: whole(0, CHAPTERS.length),
  view: choice("vectors", "sentence"),
  lang: choice("en", "zh"),
  score: choice(...NAMES),
  d: choice(...DIMENSIONS),
  q: { write: (value) => value.join(","), read: place },
  k: {
    write: (value) => value.map((key) => key.join(",")).join(";"),
    read: (text) => {
      const found = text.split(";").map(place);
      if (found.length < FEWEST_KEYS || found.length > LETTERS.length) throw new BadLink(text);
      return found;
    },
  },
  key: letter,
  who: letter,
  ...Object.fromEntries(Object.keys(RANGES).map((name) => [name, amount(name)])),
  ln: { write: (value) => (value ? "1" : "0"), read: (text) => oneOf(text, ["0", "1"]) === "1" },
  seed: whole(1, 999),
  heads: whole(1, 4),
  text: {
    write: (value) => value,
    read: (text) => {
      if (text.length > LONGEST_TEXT) throw new BadLink(text);
      return text;
    },
  },
};

// A chapter's state, in the language that is spoken.
export function chapterState(number, lang) {
  const preset = number ? CHAPTERS[number - 1] : {};
  return { ...structuredClone({ ...START, ...preset }), text: WORDS[lang], chapter: number, lang };
}

// Indices that name a key which is there.
export function tidy(state) {
  state.key = Math.min(state.key, state.k.length - 1);
  state.who = Math.min(state.who, state.k.length - 1);
  return state;
}

export function toLink(state) {
  const usual = chapterState(state.chapter, state.lang);
  const parts = [`v=${VERSION}`];
  for (const [name, { write }] of Object.entries(FIELDS)) {
    const text = write(state[name]);
    const always = name === "lang" || (name === "chapter" && state.chapter);
    if (always || text !== write(usual[name])) {
      parts.push(`${name}=${encodeURIComponent(text).replace(/%2C/g, ",").replace(/%3B/g, ";")}`);
    }
  }
  return `#${parts.join("&")}`;
}

// {state} or {mistake}: what in the link cannot be read. `lang` is spoken where the link names none.
export function fromLink(hash, lang = "en") {
  const text = hash.replace(/^#/, "");
  if (text === "") return { state: chapterState(0, lang) };
  try {
    const given = new Map();
    for (const part of text.split("&")) {
      const [name, ...rest] = part.split("=");
      if (given.has(name) || (name !== "v" && !Object.hasOwn(FIELDS, name))) throw new BadLink(part);
      given.set(name, decodeURIComponent(rest.join("=")));
    }
    if (given.get("v") !== VERSION) throw new BadLink(`v=${given.get("v") ?? ""}`);
    const read = (name, usual) => (given.has(name) ? FIELDS[name].read(given.get(name)) : usual);
    const start = chapterState(read("chapter", 0), read("lang", lang));
    const state = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, read(name, start[name])]));
    for (const name of ["key", "who"]) {
      if (given.has(name) && state[name] >= state.k.length) throw new BadLink(`${name}=${given.get(name)}`);
    }
    return { state: tidy(state) };
  } catch (error) {
    if (!(error instanceof BadLink || error instanceof URIError)) throw error;
    return { mistake: error.message.slice(0, 40) };
  }
}
