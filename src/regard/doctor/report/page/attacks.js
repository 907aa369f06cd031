// The results of a probe: one table for each of the three attacks, with the calls as rows.
const percent = (x) => Number.isNaN(x) ? "–" : !Number.isFinite(x) ? "NaN" : x > 10 ? "> 10×" : `${Math.round(100 * x)}%`;
const times = (x) => `×${Number(real(x).toPrecision(3))}`;
const head = (text) => el("th", { scope: "col" }, text);
const call = (site, rows) => el("th", { scope: "rowgroup", rowspan: rows > 1 ? rows : null }, name(site, 34));
const what = (text) => el("th", { class: "what", scope: "row" }, text);

// A cell with a share from 0 to 1, tinted by its size.
function share(x) {
  x = real(x);
  const part = Number.isNaN(x) ? 0 : Math.min(Math.max(x, 0), 1);
  return el("td", { class: Number.isNaN(x) ? "missing" : "share", style: { "--share": String(part) } }, percent(x));
}

function keyTable({ key_factors, keys }) {
  const rows = keys.flatMap(({ site, captured, c50, moved }) => [
    el("tr", null, call(site, 2), what("queries captured"), captured.map(share),
      el("td", { rowspan: 2 }, Number.isFinite(real(c50)) ? times(c50) : `beyond ${times(key_factors.at(-1))}`)),
    el("tr", null, what("the output moves by"), moved.map(share)),
  ]);
  return [[head("attention call"), head(""), key_factors.map((c) => head(times(c))), head("half of them at")], rows];
}

function inputTable({ input_factors, inputs }) {
  const rows = inputs.flatMap(({ site, logit_max, entropy, broken, range }) => {
    const anyBroken = broken.some((n) => n), count = anyBroken ? 3 : 2;
    const held = (i) => range && input_factors[i] >= range[0] && input_factors[i] <= range[1];
    const kind = (i) => broken[i] ? "failure" : held(i) ? null : "warning";
    const cells = (values, text) => values.map((x, i) => el("td", { class: kind(i) }, text(x)));
    return [
      el("tr", null, call(site, count), what("largest logit"), cells(logit_max, shown),
        el("td", { rowspan: count }, range ? `${times(range[0])} to ${times(range[1])}` : "not even ×1")),
      el("tr", null, what("entropy"), cells(entropy, shown)),
      anyBroken ? el("tr", null, what("NaN or Inf"), cells(broken, (n) => n ? shown(n) : "")) : null,
    ].filter(Boolean);
  });
  return [[head("attention call"), head(""), input_factors.map((c) => head(times(c))), head("withstands")], rows];
}

function positionTable({ positions: { shifts, sites, moved } }) {
  const rows = sites.map(({ site, changed }) => el("tr", null, call(site, 1), what("weight that moved"), changed.map(share)));
  rows.push(el("tr", null, el("th", { scope: "rowgroup" }, "the whole model"), what("the output moves by"), moved.map(share)));
  return [[head("attention call"), head(""), shifts.map((s) => head(`+${s}`))], rows];
}

const SHIFTED = {
  position_ids: "Positions start at a later number. At 0% a call depends on distances only.",
  rolled: "The input is rolled, and the output rolled back. At 0% a call does not depend on positions.",
};

function drawAttacks({ probe }) {
  if (!probe) return;
  const card = (title, about, [heads, rows]) => el("div", { class: "card attack" }, el("h3", null, title), el("p", null, about),
    el("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": title }, el("table", null, el("thead", null, el("tr", null, heads.flat())), el("tbody", null, rows))));
  const cards = [
    probe.keys.length ? card("One key gets longer", "A query is captured when that key gets half of its weight.", keyTable(probe)) : null,
    probe.inputs.length ? card("The inputs get smaller and larger", `Multiplied: ${visible(probe.scaled)}. Tinted where a call fails: logits above 1000, entropy below 0.1, or NaN and Inf.`, inputTable(probe)) : null,
    probe.positions.how ? card("All positions shift", SHIFTED[probe.positions.how], positionTable(probe)) : null,
    probe.notes.length ? el("div", { class: "card attack" }, el("h3", null, "What was not tried"), el("ul", null, probe.notes.map((note) => el("li", null, el("bdi", null, visible(note)))))) : null,
  ].filter(Boolean);
  $("#attacks").hidden = !cards.length;
  $("#attacks .cards").append(...cards);
}
