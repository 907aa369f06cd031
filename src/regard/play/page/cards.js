// A card for each score, the calculation of the chosen one, and the table of all numbers.
import { barRows, COLOURS, figure, make, mark, paintMap, percent, put } from "./draw.js";
import { LETTERS } from "./state.js";
import { FORMULAS, say, TEXT } from "./text.js";
import { NAMES } from "./scores.js";

export function makeCards(parent, choose) {
  const cards = NAMES.map((name) => {
    const title = make("button", { type: "button", class: "name" });
    const idea = make("p", { class: "idea" }), formula = make("p", { class: "formula", text: FORMULAS[name] });
    const canvas = make("canvas", { width: 200, height: 200, role: "img" });
    const bars = make("div", { class: "bars" });
    const entropy = make("span"), gradient = make("span");
    const card = make("article", { class: "card", "data-score": name }, title, idea, formula,
      make("div", { class: "middle" }, canvas, bars), make("p", { class: "vitals" }, entropy, gradient));
    card.addEventListener("click", () => choose(name));
    parent.append(card);
    return { name, card, title, idea, canvas, entropy, gradient, fill: barRows(bars), painted: "" };
  });
  return (state, results, mapOf) => {
    const { names, ideas, entropy, gradient } = TEXT[state.lang], most = figure(Math.log(state.k.length));
    for (const made of cards) {
      const result = results[made.name], chosen = state.score === made.name;
      made.card.classList.toggle("chosen", chosen);
      put(made.title, names[made.name]);
      mark(made.title, "aria-pressed", chosen);
      mark(made.title, "title", say(state.lang, chosen ? "chosen" : "choose", { score: names[made.name] }));
      put(made.idea, ideas[made.name]);
      mark(made.canvas, "aria-label", say(state.lang, "map_label", { score: names[made.name] }));
      made.fill(result.weights);
      put(made.entropy, `${entropy} ${figure(result.entropy)}`);
      mark(made.entropy, "title", say(state.lang, "entropy_hint", { most }));
      put(made.gradient, `${gradient} ${figure(result.jacobian)}`);
      mark(made.gradient, "title", say(state.lang, "gradient_hint"));
      const { label, image } = mapOf(made.name);
      const needed = label + state.q;
      if (needed !== made.painted) paintMap(made.canvas, image, state);
      made.painted = needed;
    }
  };
}

// Rows of texts as a table; the same cells are used again while the size stays.
function fill(table, parts) {
  const size = parts.map((rows) => rows.length).join() + parts[0][0].length;
  if (table.dataset.size !== size) {
    const kinds = ["thead", "tbody", "tfoot"];
    const cellFor = (part, column) => {
      if (part === 0) return make("th", { scope: "col" });
      return column === 0 ? make("th", { scope: "row" }) : make("td");
    };
    const rowFor = (row, part) => make("tr", {}, ...row.map((_, column) => cellFor(part, column)));
    table.replaceChildren(...parts.map((rows, part) => make(kinds[part], {}, ...rows.map((row) => rowFor(row, part)))));
    table.dataset.size = size;
  }
  const cells = table.querySelectorAll("th, td");
  parts.flat(2).forEach((text, i) => put(cells[i], text));
}

const said = (lang, ...names) => names.map((name) => say(lang, `column_${name}`));

// Score, exp, weight, weight x value: one line for each key, and the sums.
export function showHand(table, state, result) {
  const scaled = result.scores.map((score) => score / state.t), most = Math.max(...scaled);
  const parts = scaled.map((score) => Math.exp(score - most));
  const pair = ([x, y]) => `${figure(x)}, ${figure(y)}`;
  const rows = state.k.map((place, i) => {
    const weight = result.weights[i];
    return [LETTERS[i], figure(result.scores[i]), figure(parts[i]), figure(weight), pair(place.map((x) => x * weight))];
  });
  const sums = [say(state.lang, "sum"), "", figure(parts.reduce((a, b) => a + b)), "1", pair(result.output)];
  fill(table, [[said(state.lang, "key", "score", "exp", "weight", "value")], rows, [sums]]);
  table.querySelectorAll("tbody th").forEach((cell, i) => cell.style.setProperty("--mark", COLOURS[i]));
}

export function showNumbers(table, state, results) {
  const rows = NAMES.map((name) => {
    const { largest, winner, entropy, jacobian, scoreSlope, weightSlope } = results[name];
    return [TEXT[state.lang].names[name], `${LETTERS[winner]} ${percent(largest)}`,
      ...[entropy, Math.exp(entropy), jacobian, scoreSlope, weightSlope].map(figure)];
  });
  const columns = ["name", "largest", "entropy", "effective", "jacobian", "score_slope", "weight_slope"];
  fill(table, [[said(state.lang, ...columns)], rows]);
  table.querySelectorAll("tbody tr").forEach((row, i) => {
    row.classList.toggle("chosen", NAMES[i] === state.score);
  });
}
