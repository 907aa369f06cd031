// Sliders and switches. Each says what it sets, its value, and in a few words what that does.
import { make, mark, put } from "./draw.js";
import { DIMENSIONS, FEWEST_KEYS, LETTERS, PLACES, RANGES, round } from "./state.js";
import { say } from "./text.js";

const STOPS = 100, NEAR = 0.03;

// A slider between 0 and STOPS to an amount, by factors or by steps; 1 is easy to meet.
function amountSlider(name) {
  const [least, most] = RANGES[name];
  const factors = least > 0;
  return {
    most: STOPS,
    read: (state) => {
      const share = factors ? Math.log(state[name] / least) / Math.log(most / least) : state[name] / most;
      return STOPS * share;
    },
    write: (stop) => {
      const found = factors ? least * (most / least) ** (stop / STOPS) : (most * stop) / STOPS;
      if (factors && Math.abs(found - 1) < NEAR) return { [name]: 1 };
      return { [name]: round(found, found < 1 ? 3 : found < 10 ? 2 : 1) };
    },
    show: (state) => String(round(state[name], state[name] < 1 ? 3 : 2)),
  };
}

const SLIDERS = {
  d: {
    most: DIMENSIONS.length - 1,
    read: (state) => DIMENSIONS.indexOf(state.d),
    write: (stop) => ({ d: DIMENSIONS[stop] }),
    show: (state) => String(state.d),
  },
  n: {
    least: FEWEST_KEYS,
    most: LETTERS.length,
    read: (state) => state.k.length,
    write: (count, state) => ({ k: [...state.k, ...PLACES.slice(state.k.length)].slice(0, count) }),
    show: (state) => String(state.k.length),
  },
  heads: {
    least: 1,
    most: 4,
    read: (state) => state.heads,
    write: (heads) => ({ heads }),
    show: (state) => String(state.heads),
  },
  ...Object.fromEntries(Object.keys(RANGES).map((name) => [name, amountSlider(name)])),
};
const ORDER = ["d", "n", "t", "heads", "qn", "kn", "loud", "pos", "h"];
const IN_VIEW = {
  vectors: ["d", "n", "t", "qn", "kn", "loud", "pos", "h"],
  sentence: ["t", "heads", "pos", "h"],
};

function row(name, head, control) {
  const hint = make("span", { class: "unseen", id: `hint-${name}` });
  control.setAttribute("aria-describedby", hint.id);
  const top = make("div", { class: "setting-head" }, ...head);
  return { name, hint, box: make("div", { class: "setting", "data-setting": name }, top, hint) };
}

function sliderRow(name, current, change) {
  const { least = 0, most, write } = SLIDERS[name];
  const label = make("label", { for: `set-${name}` }), value = make("output", { for: `set-${name}` });
  const oninput = () => change(write(Number(input.value), current()));
  const input = make("input", { type: "range", id: `set-${name}`, min: least, max: most, step: 1, oninput });
  const made = row(name, [label, value], input);
  made.hint.before(input);
  return { ...made, label, value, input };
}

// Says below the sliders what the one that is pointed at does.
function helper(parent, help, current) {
  let about = null;
  const tell = () => {
    const state = current(), blind = state.ln && state.d === 2 && state.view === "vectors";
    put(help, blind ? say(state.lang, "ln_two") : about ? byName(about) : say(state.lang, "help"));
  };
  const byName = (name) => document.getElementById(`hint-${name}`).textContent;
  for (const event of ["pointerover", "focusin"]) {
    parent.addEventListener(event, ({ target }) => {
      about = target.closest("[data-setting]")?.dataset.setting ?? about;
      tell();
    });
  }
  return tell;
}

export function makeSettings(parent, help, current, change) {
  const rows = ORDER.map((name) => sliderRow(name, current, change));
  const who = make("select", { id: "set-who", onchange: () => change({ who: Number(who.value) }) });
  rows.find(({ name }) => name === "loud").value.before(who);
  const lnLabel = make("label", { for: "set-ln" });
  const button = (name, act, more) => make("button", { type: "button", id: `set-${name}`, onclick: act, ...more });
  const ln = button("ln", () => change({ ln: !current().ln }), { role: "switch" });
  const seed = button("seed", () => change({ seed: (current().seed % 999) + 1 }), { class: "plain" });
  const drawn = make("output");
  const others = [row("ln", [lnLabel, ln], ln), row("seed", [seed, drawn], seed)];
  parent.append(...[...rows, ...others].map(({ box }) => box));
  const tell = helper(parent, help, current);

  return (state) => {
    const word = (name, filled) => say(state.lang, name, filled);
    for (const { name, box, label, value, input } of rows) {
      box.hidden = !IN_VIEW[state.view].includes(name);
      put(label, word(name));
      put(value, SLIDERS[name].show(state));
      input.value = SLIDERS[name].read(state);
      mark(input, "aria-valuetext", value.textContent);
    }
    for (const { name, hint } of [...rows, ...others]) {
      put(hint, word(name === "pos" && state.view === "sentence" ? "pos_hint_sentence" : `${name}_hint`));
    }
    if (who.options.length !== state.k.length) {
      who.replaceChildren(...state.k.map((_, i) => make("option", { value: i, text: LETTERS[i] })));
    }
    who.value = state.who;
    mark(who, "aria-label", word("who"));
    put(lnLabel, word("ln"));
    mark(ln, "aria-checked", state.ln);
    put(ln, word(state.ln ? "on" : "off"));
    put(seed, word("seed"));
    put(drawn, word("draw", { seed: state.seed }));
    tell();
  };
}
