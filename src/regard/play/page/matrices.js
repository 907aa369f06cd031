// The sentence view: a matrix of weights for each head, and the numbers of the cell pointed at.
import { figure, make, mark, percent, put, rgb, theme } from "./draw.js";
import { HEADS, MOST_WORDS, readSentence, SENTENCE_NAMES } from "./sentence.js";
import { say, TEXT } from "./text.js";

const LABEL = 62, TOP = 58; // pixels left of the cells and above them
const FONT = "12px system-ui, -apple-system, 'Segoe UI', 'Noto Sans CJK SC', sans-serif";
const PAIRWISE = ["additive", "gatv2", "gat"];
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function shorten(context, word, width) {
  if (context.measureText(word).width <= width) return word;
  let cut = word;
  while (cut && context.measureText(`${cut}…`).width > width) cut = cut.slice(0, -1);
  return `${cut}…`;
}

// Above a column, upright or turned.
function columnLabel(context, word, x, upright) {
  context.save();
  if (upright) {
    context.textAlign = "center";
    context.fillText(word, x, TOP - 13);
  } else {
    context.translate(x, TOP - 8);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(shorten(context, word, TOP - 12), 0, 0);
  }
  context.restore();
}

function paint(canvas, words, head, cell) {
  const scale = window.devicePixelRatio || 1, wide = canvas.clientWidth || 300;
  const size = (wide - LABEL) / words.length;
  const high = TOP + size * words.length;
  canvas.width = Math.round(wide * scale);
  canvas.height = Math.round(high * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = FONT;
  context.textBaseline = "middle";
  const paper = rgb(theme("--sunk")), accent = rgb(theme("--heat"));
  const ink = theme("--ink"), soft = theme("--soft");
  const upright = words.every((word) => context.measureText(word).width <= size - 4);
  words.forEach((word, i) => {
    const middle = size * (i + 0.5);
    context.fillStyle = cell && cell[0] === i ? ink : soft;
    context.textAlign = "right";
    context.fillText(shorten(context, word, LABEL - 10), LABEL - 8, TOP + middle);
    context.fillStyle = cell && cell[1] === i ? ink : soft;
    columnLabel(context, word, LABEL + middle, upright);
  });
  head.weights.forEach((row, i) => row.forEach((weight, j) => {
    const share = weight ** 0.8;
    const colour = paper.map((part, c) => Math.round(part + share * (accent[c] - part)));
    context.fillStyle = `rgb(${colour.join(" ")})`;
    context.beginPath();
    context.roundRect(LABEL + j * size + 1, TOP + i * size + 1, size - 2, size - 2, 3);
    context.fill();
  }));
  if (cell) {
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.strokeRect(LABEL + cell[1] * size + 1, TOP + cell[0] * size + 1, size - 2, size - 2);
  }
}

// The numbers of a cell in every head.
function tellCell(readout, { words, heads }, cell, lang) {
  readout.classList.toggle("pinned", cell !== null);
  if (!cell) {
    put(readout, say(lang, words.length ? "readout_start" : "no_words"));
    return;
  }
  const [i, j] = cell;
  const parts = heads.map((head, number) => {
    const name = say(lang, "readout_head", { number: number + 1 });
    const weight = make("b", { text: percent(head.weights[i][j]) });
    return make("span", { class: "head-number" }, `${name} `, weight, ` (s = ${figure(head.scores[i][j])})`);
  });
  const pair = say(lang, "readout", { from: words[i], to: words[j] });
  readout.replaceChildren(make("span", { text: pair }), ...parts);
}

// The cell (row, column) of `count` by `count` that the pointer is on, or null.
function cellUnder(event, count) {
  const { left, top, width } = event.currentTarget.getBoundingClientRect(), size = (width - LABEL) / count;
  const found = [(event.clientY - top - TOP) / size, (event.clientX - left - LABEL) / size].map(Math.floor);
  return found.every((at) => at >= 0 && at < count) ? found : null;
}

// A matrix that reports the cell pointed at, or stepped to: `move(cell)` with `from()` the cell before.
function headFigure(count, from, move) {
  const point = (event) => {
    const cell = cellUnder(event, count());
    if (cell && String(cell) !== String(from())) move(cell);
  };
  const step = (event) => {
    const way = ARROWS[event.key], last = count() - 1;
    if (!way || event.ctrlKey || event.metaKey || event.altKey) return;
    move(from() ? from().map((at, axis) => Math.min(last, Math.max(0, at + way[axis]))) : [0, 0]);
    event.preventDefault();
  };
  const events = { onpointermove: point, onpointerdown: point, onkeydown: step };
  const canvas = make("canvas", { tabindex: 0, role: "application", ...events });
  const caption = make("figcaption");
  return { canvas, caption, box: make("figure", {}, caption, canvas) };
}

function noteOf(state, found) {
  const full = found.words.length === MOST_WORDS;
  const long = full ? `${say(state.lang, "too_long", { most: MOST_WORDS })} ` : "";
  return long + say(state.lang, PAIRWISE.includes(found.name) ? "head_note" : "sentence_bilinear");
}

export function makeMatrices({ parent, chips, note, readout, input, change }) {
  let state, found, cell = null;
  const repaint = () => {
    found.heads.forEach((head, number) => paint(heads[number].canvas, found.words, head, cell));
    tellCell(readout, found, cell, state.lang);
  };
  const move = (to) => { cell = to; repaint(); };
  const heads = HEADS.map(() => headFigure(() => found.words.length, () => cell, move));
  const buttons = SENTENCE_NAMES.map((score) =>
    make("button", { type: "button", class: "chip", onclick: () => change({ score }) }));
  parent.append(...heads.map(({ box }) => box));
  chips.append(...buttons);
  input.addEventListener("input", () => change({ text: input.value }));

  return (now) => {
    state = now;
    found = readSentence(state);
    if (cell && Math.max(...cell) >= found.words.length) cell = null;
    if (input.value !== state.text) input.value = state.text;
    SENTENCE_NAMES.forEach((name, i) => {
      put(buttons[i], TEXT[state.lang].names[name]);
      mark(buttons[i], "aria-pressed", name === found.name);
    });
    put(note, noteOf(state, found));
    heads.forEach(({ box, caption, canvas }, i) => {
      box.hidden = i >= found.heads.length;
      if (box.hidden) return;
      const filled = { number: i + 1, what: say(state.lang, `head_${found.heads[i].kind}`) };
      put(caption, say(state.lang, "head", filled));
      mark(canvas, "aria-label", say(state.lang, "matrix_label", filled));
    });
    repaint();
  };
}
