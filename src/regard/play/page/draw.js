// Colours, numbers and decision maps.
import { decisions, REACH } from "./model.js";
import { LETTERS } from "./state.js";

// Of Okabe and Ito: they stay apart for colour-blind readers. Every key has its letter too.
export const COLOURS = [
  "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B8A800", "#8A8A8A",
];
const TAU = 2 * Math.PI;

export const rgb = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
export const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const letterColour = (key) => (key === 0 ? "#fff" : "#141414"); // blue alone is dark

export function make(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") found.textContent = value;
    else if (name.startsWith("on")) found.addEventListener(name.slice(2), value);
    else found.setAttribute(name, value);
  }
  found.append(...children);
  return found;
}

// Sets a text or an attribute where it differs: the browser then lays out less.
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
export function mark(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function percent(x) {
  if (x > 0 && x < 0.0005) return "<0.1%";
  return x >= 0.9995 ? "100%" : `${(100 * x).toFixed(1)}%`;
}

// Four digits, whatever the size.
export function figure(x) {
  const size = Math.abs(x);
  if (size === 0) return "0";
  const text = size < 1e-4 || size >= 1e5 ? x.toExponential(1) : x.toFixed(size < 10 ? 4 : size < 1000 ? 2 : 0);
  return text.replace("e+", "e").replaceAll("-", "−");
}

// A decision map as an image: the winner's colour, stronger where it is surer.
function mapImage(name, state, size, scene) {
  const { winners, sure } = decisions(name, state, size, scene);
  const image = new ImageData(size, size), paper = rgb(theme("--card")), least = 1 / state.k.length;
  const colours = COLOURS.map(rgb), faint = paper[0] < 128 ? 0.26 : 0.14;
  for (let place = 0; place < winners.length; place++) {
    const colour = colours[winners[place]];
    const share = faint + 0.5 * Math.max(0, (sure[place] - least) / (1 - least));
    for (let part = 0; part < 3; part++) {
      image.data[4 * place + part] = paper[part] + share * (colour[part] - paper[part]);
    }
    image.data[4 * place + 3] = 255;
  }
  const found = document.createElement("canvas");
  found.width = found.height = size;
  found.getContext("2d").putImageData(image, 0, 0);
  return found;
}

// Maps are kept while only the query moves; a fine one serves where a coarse one is asked for.
export function mapKeeper() {
  const kept = new Map();
  return (name, state, size, scene) => {
    const content = scene.content + theme("--card");
    const before = kept.get(name);
    if (before?.content === content && before.size >= size) return before;
    const found = { content, size, label: content + size, image: mapImage(name, state, size, scene) };
    kept.set(name, found);
    return found;
  };
}

const onCanvas = (canvas, place) =>
  [0.5 + place[0] / (2 * REACH), 0.5 - place[1] / (2 * REACH)].map((share) => share * canvas.width);

function disc(context, [x, y], radius, fill, edge) {
  context.beginPath();
  context.arc(x, y, radius, 0, TAU);
  context.fillStyle = fill;
  context.fill();
  context.lineWidth = radius / 2.5;
  context.strokeStyle = edge;
  context.stroke();
}

// A map with the keys and the query on it.
export function paintMap(canvas, image, state) {
  const context = canvas.getContext("2d"), unit = canvas.width / 100;
  context.imageSmoothingEnabled = true;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  const paper = theme("--card"), ink = theme("--ink");
  state.k.forEach((key, i) => disc(context, onCanvas(canvas, key), 3.2 * unit, COLOURS[i], paper));
  disc(context, onCanvas(canvas, state.q), 3.6 * unit, ink, paper);
}

export function paintGround(canvas, image) {
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = true;
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
}

// A row of weights: letter, bar, number. Rows are made once and moved.
export function barRows(parent) {
  const rows = [];
  return (weights) => {
    while (rows.length < weights.length) {
      const i = rows.length;
      const bar = make("span", { class: "bar" }), value = make("span", { class: "amount" });
      const row = make("div", { class: "row" }, make("span", { class: "letter", text: LETTERS[i] }),
        make("span", { class: "track" }, bar), value);
      bar.style.background = COLOURS[i];
      rows.push({ row, bar, value });
      parent.append(row);
    }
    rows.forEach(({ row, bar, value }, i) => {
      row.hidden = i >= weights.length;
      if (row.hidden) return;
      bar.style.transform = `scaleX(${weights[i]})`;
      put(value, percent(weights[i]));
    });
  };
}
