// Puts the parts together: one state, drawn once a frame, written to the address when it rests.
import { figure, make, mapKeeper, mark, paintGround, percent, put } from "./draw.js";
import { parametersOf, results, sceneOf, vectorsOf } from "./model.js";
import { HEADS, headOf, readSentence } from "./sentence.js";
import { chapterState, fromLink, LETTERS, tidy, toLink } from "./state.js";
import { makeCards, showHand, showNumbers } from "./cards.js";
import { makeMatrices } from "./matrices.js";
import { makePlane } from "./plane.js";
import { makeSettings } from "./settings.js";
import { NAMES } from "./scores.js";
import { CHAPTERS } from "./chapters.js";
import { say, TEXT } from "./text.js";

const COARSE = 36, FINE = 100, FINEST = 140; // places along the edge of a map: moving, at rest, in the plane
const REST = 160; // ms
const byId = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];
const root = document.documentElement;

let state, moved = -REST, waiting = 0, resting = 0, spoken = "";
const keeper = mapKeeper();

function change(fields) {
  Object.assign(state, fields);
  tidy(state);
  byId("note").hidden = true;
  redraw();
}

// While something changes maps are coarse; where it is only the window they stay fine.
function redraw(moving = true) {
  if (moving) moved = performance.now();
  if (!waiting) waiting = requestAnimationFrame(draw);
  clearTimeout(resting);
  resting = setTimeout(() => { draw(); settle(); }, REST);
}

const cards = makeCards(byId("cards"), (score) => change({ score }));
const settings = makeSettings(byId("settings"), byId("help"), () => state, change);
const plane = makePlane({
  svg: byId("points"),
  strip: byId("strip"),
  move: (name, place) => change(name === "q" ? { q: place } : { k: state.k.with(Number(name), place) }),
  choose: (name) => { if (name !== "q" && state.key !== Number(name)) change({ key: Number(name) }); },
});
const matrices = makeMatrices({
  parent: byId("matrices"), chips: byId("sentence-scores"), note: byId("sentence-note"),
  readout: byId("readout"), input: byId("sentence"), change,
});

function draw() {
  cancelAnimationFrame(waiting);
  waiting = 0;
  for (const part of all("[data-view]")) part.hidden = part.dataset.view !== state.view;
  for (const view of ["vectors", "sentence"]) mark(byId(`view-${view}`), "aria-pressed", state.view === view);
  settings(state);
  if (state.view === "vectors") drawVectors();
  else matrices(state);
}

function drawVectors() {
  const scene = sceneOf(state), found = results(state, scene), chosen = found[state.score];
  const size = performance.now() - moved < REST - 20 ? COARSE : FINE;
  const mapOf = (name) => keeper(name, state, size === FINE && name === state.score ? FINEST : size, scene);
  const { names } = TEXT[state.lang];
  plane(state, chosen);
  paintGround(byId("ground"), mapOf(state.score).image);
  cards(state, found, mapOf);
  put(byId("plane-hint"), say(state.lang, "plane_hint", { score: names[state.score] }));
  put(byId("hand-title"), say(state.lang, "by_hand", { score: names[state.score] }));
  put(byId("numbers-hint"), say(state.lang, "numbers_hint", { letter: LETTERS[state.key] }));
  showHand(byId("hand"), state, chosen);
  showNumbers(byId("numbers"), state, found);
}

// What a screen reader is told, and the address, follow when the hand rests.
function settle() {
  const link = toLink(state);
  if (location.hash !== link) history.replaceState(null, "", link);
  if (state.view !== "vectors") return;
  const result = results(state)[state.score];
  const weights = result.weights.map((weight, i) => `${LETTERS[i]} ${percent(weight)}`).join(", ");
  const score = TEXT[state.lang].names[state.score];
  const now = say(state.lang, "live", { score, weights, entropy: figure(result.entropy) });
  if (now !== spoken) byId("live").textContent = now;
  spoken = now;
}

// Words that stay as they are until the language changes.
function translate() {
  root.lang = state.lang === "zh" ? "zh-Hans" : "en";
  document.title = say(state.lang, "title");
  for (const part of all("[data-text]")) part.textContent = say(state.lang, part.dataset.text);
  for (const part of all("[data-label]")) {
    part.setAttribute("aria-label", say(state.lang, part.dataset.label));
    if (part.matches("button")) part.title = part.getAttribute("aria-label");
  }
  const { titles, tries, free } = TEXT[state.lang];
  byId("chapters").replaceChildren(...[free, ...titles].map((title, number) => make("li", {}, make("button", {
    type: "button", class: "chapter", "aria-pressed": state.chapter === number, "data-chapter": number,
    onclick: () => begin(chapterState(number, state.lang)),
  }, ...(number ? [make("b", { text: number })] : []), title))));
  byId("try").hidden = state.chapter === 0;
  byId("try").querySelector("span").textContent = tries[state.chapter - 1] ?? "";
}

function begin(fresh) {
  const focused = document.activeElement?.dataset?.chapter;
  state = fresh;
  byId("note").hidden = true;
  translate();
  if (focused !== undefined) document.querySelector(`[data-chapter="${focused}"]`).focus();
  redraw();
}

// Takes the state of a link; one that cannot be read changes nothing but the note.
function restore(hash) {
  const lang = state?.lang ?? (navigator.language.startsWith("zh") ? "zh" : "en");
  const { state: fresh, mistake } = fromLink(hash, lang);
  if (fresh) begin(fresh);
  else {
    if (!state) begin(chapterState(0, lang));
    byId("note").textContent = say(lang, "bad_link", { what: mistake });
    byId("note").hidden = false;
  }
  return !mistake;
}

function otherLanguage() {
  const lang = state.lang === "en" ? "zh" : "en";
  const own = chapterState(state.chapter, state.lang).text === state.text;
  begin({ ...state, lang, text: own ? chapterState(0, lang).text : state.text });
}

async function copyLink() {
  settle();
  const button = byId("copy");
  let said = "copied";
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    said = "copy_by_hand";
  }
  button.textContent = say(state.lang, said);
  setTimeout(() => { button.textContent = say(state.lang, "copy"); }, 1800);
}

const remembered = {
  get: () => { try { return localStorage.getItem("regard-theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("regard-theme", value); } catch { /* private */ } },
};
const systemDark = matchMedia("(prefers-color-scheme: dark)");
if (["light", "dark"].includes(remembered.get())) root.dataset.theme = remembered.get();
byId("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches;
  root.dataset.theme = dark ? "light" : "dark";
  remembered.set(root.dataset.theme);
  redraw(false);
});
systemDark.addEventListener("change", () => redraw(false));
byId("language").addEventListener("click", otherLanguage);
byId("copy").addEventListener("click", copyLink);
byId("reset").addEventListener("click", () => begin(chapterState(state.chapter, state.lang)));
for (const view of ["vectors", "sentence"]) {
  byId(`view-${view}`).addEventListener("click", () => change({ view }));
}
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address holds the state
  (state.view === "vectors" ? byId("points").querySelector(".query") : byId("sentence")).focus();
});
addEventListener("hashchange", () => { if (location.hash !== toLink(state)) restore(location.hash); });
addEventListener("resize", () => redraw(false));
restore(location.hash);

// For tests and the curious: everything that is shown, as numbers.
window.regard = {
  restore,
  link: () => toLink(state),
  chapters: () => CHAPTERS.length,
  state: () => structuredClone(state),
  vectors: () => ({
    ...vectorsOf(state),
    values: state.k,
    parameters: Object.fromEntries(NAMES.map((name) => [name, parametersOf(name, state.d, state.seed)])),
    results: results(state),
  }),
  sentence: () => ({
    ...readSentence(state),
    parameters: HEADS.slice(0, state.heads).map((kind) => headOf(kind, state.seed)),
  }),
};
