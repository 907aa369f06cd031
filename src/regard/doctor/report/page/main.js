// The chosen vital, attention call and head, and the functions to call when the choice changes.
class State {
  constructor(record) {
    this.record = record;
    this.sites = new Map(record.sites.map((site) => [site.name, site]));
    this.vitals = new Map(record.vitals.filter((vital) => record.sites.some((site) => site.last[vital.name])).map((vital) => [vital.name, vital]));
    this.severities = new Map();
    this.alarms = new Map();
    for (const finding of [...record.findings].reverse()) { // sorted worst first: reversed, the worst is set last and wins
      this.severities.set(finding.site, finding.severity);
      for (const signal of finding.signals) this.alarms.set(JSON.stringify([finding.site, signal.made_of]), finding);
    }
    const first = record.findings.find((f) => this.sites.has(f.site) && f.signals.some((s) => this.vitals.has(s.vital)));
    this.vital = first ? first.signals.find((s) => this.vitals.has(s.vital)).vital
      : ["logit_max", "entropy", "logit_bound"].find((v) => this.vitals.has(v)) ?? [...this.vitals.keys()][0];
    this.siteName = first ? first.site : (record.sites.find((site) => site.last[this.vital]) ?? record.sites[0])?.name;
    this.head = first ? first.heads[0] ?? -1 : -1;
    this.listeners = [];
  }
  site(named) { return this.sites.get(named); }
  entry() { return this.vitals.get(this.vital); }
  severity(site) { return this.severities.get(site); }
  alarm(site, vital, head) {
    const finding = this.alarms.get(JSON.stringify([site, vital]));
    return finding && (head === null || !finding.heads.length || finding.heads.includes(head)) ? finding.severity : null;
  }
  choose({ vital = this.vital, site = this.siteName, head = this.head }) {
    const heads = this.site(site)?.heads ?? 0;
    Object.assign(this, { vital, siteName: site, head: head < heads ? head : -1 });
    this.listeners.forEach((listener) => listener());
  }
}

// With more attention calls than this the charts stand beside the heat map, not below it.
const TALL = 14;

function drawPickers(record, state) {
  const vital = $("#pick-vital"), site = $("#pick-site"), head = $("#pick-head");
  const kinds = { cheap: "measured at every step", sampled: "measured at sampled steps", exact: "measured exactly", gradient: "measured in backward", "": "others" };
  for (const [level, label] of Object.entries(kinds)) {
    const those = [...state.vitals.values()].filter((one) => one.level === level);
    if (those.length) vital.append(el("optgroup", { label }, those.map((one) => el("option", { value: one.name }, one.name))));
  }
  site.append(...record.sites.map((one) => el("option", { value: one.name, title: one.name }, shortened(one.name, 60))));
  vital.addEventListener("change", () => state.choose({ vital: vital.value }));
  site.addEventListener("change", () => state.choose({ site: site.value, head: -1 }));
  head.addEventListener("change", () => state.choose({ head: Number(head.value) }));
  return () => {
    const heads = state.site(state.siteName).heads;
    vital.value = state.vital;
    site.value = state.siteName;
    if (head.options.length !== heads + 1) head.replaceChildren(el("option", { value: "-1" }, "all"), ...Array.from({ length: heads }, (_, i) => el("option", { value: i }, String(i))));
    head.value = String(state.head);
    const { unit, meaning, low_is_worse } = state.entry();
    $("#about").replaceChildren(name(state.siteName, 60), `: ${about(state.site(state.siteName))}`);
    $("#meaning").replaceChildren(el("b", null, state.vital), ` ${meaning || "a vital of your own"}.`, el("span", null, [unit && `unit: ${unit}`, low_is_worse && "low values are the bad ones"].filter(Boolean).join("; ")));
  };
}

// A call in one line: how it was seen, and its sizes.
function about({ route, heads, facts }) {
  const { queries, keys, dims, scale } = facts;
  return [`seen in ${{ sdpa: "SDPA", flex: "FlexAttention", softmax: "a softmax", regard: "regard.attention" }[route] ?? route}`, plural(heads, "head"),
    queries && `${queries} × ${keys} queries and keys`, dims && `${dims} dims`, scale && `scale ${shown(scale)}`].filter(Boolean).join(", ");
}

function drawFoot(record, state) {
  if (record.notes.length || record.left_out) {
    $("#notes").hidden = false;
    $("#notes ul").append(...[...record.notes, record.left_out].filter(Boolean).map((note) => el("li", null, el("bdi", null, note))));
  }
  if (state.vitals.size) {
    $("#glossary").hidden = false;
    $("#glossary dl").append(...[...state.vitals.values()].map((one) => el("div", null, el("dt", null, el("code", null, one.name), el("span", null, one.unit)), el("dd", null, one.meaning))));
  }
  const facts = { model: record.model, parameters: record.parameters.toLocaleString("en"), steps: `${record.steps}, of which ${record.kept} are kept`, level: `${record.level}, every ${plural(record.every, "step")}`, made: record.made, ...record.versions };
  $(".foot dl").append(...Object.entries(facts).map(([key, value]) => el("div", null, el("dt", null, key), el("dd", null, el("bdi", null, String(value))))));
}

(() => {
  const record = JSON.parse($("#record").textContent), state = new State(record);
  drawFindings(record, state);
  drawBoard(record, state);
  drawAttacks(record);
  drawFoot(record, state);
  let redraw = () => {};
  if (state.vitals.size) {
    $("#vitals").hidden = $("#numbers").hidden = false;
    const pickers = drawPickers(record, state), heat = new HeatMap(record, state);
    $(".explorer").classList.toggle("tall", record.sites.length > TALL);
    redraw = () => { pickers(); heat.draw(); drawCourse(record, state); drawSpread(record, state); };
    state.listeners.push(redraw);
    redraw();
    new NumberTable(record, state);
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redraw(); } });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("beforeprint", () => { root.classList.add("printing"); $("#glossary details").open = true; redraw(); });
    addEventListener("afterprint", () => { root.classList.remove("printing"); redraw(); });
  }
  themeButton(() => redraw());
})();
