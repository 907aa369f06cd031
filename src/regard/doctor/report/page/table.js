// The table of all numbers, which can be sorted and filtered.
const PAGE = 100;

class NumberTable {
  constructor(record, state) {
    this.record = record;
    this.state = state;
    this.vitals = record.vitals.filter((vital) => record.sites.some((site) => site.last[vital.name]));
    this.sorted = { by: null, down: true };
    this.most = PAGE;
    $("#filter").addEventListener("input", () => this.again());
    $("#rows").addEventListener("change", () => this.again());
    $("#numbers .more").addEventListener("click", () => { this.most += PAGE; this.draw(); });
    const named = (text, key, about) => el("th", { scope: "col", "aria-sort": "none" }, el("button", { type: "button", title: about, on: { click: () => this.sort(key) } }, text, el("span", { class: "dir", "aria-hidden": "true" })));
    this.heads = [named("attention call", "site", "its module's path"), named("head", "head", "its number, or how many there are"), ...this.vitals.map((vital) => named(vital.name, vital.name, vital.meaning))];
    $("#table thead").append(el("tr", null, this.heads));
    this.again();
  }

  again() { this.most = PAGE; this.draw(); }
  sort(key) {
    const entry = this.vitals.find((vital) => vital.name === key);
    const down = entry ? !entry.low_is_worse : false; // the worst first
    this.sorted = this.sorted.by === key ? { by: key, down: !this.sorted.down } : { by: key, down };
    const keys = ["site", "head", ...this.vitals.map((vital) => vital.name)];
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", keys[i] !== key ? "none" : this.sorted.down ? "descending" : "ascending"));
    this.again();
  }

  rows() {
    const words = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const sites = this.record.sites.map((site, order) => ({ site, order })).filter(({ site }) => words.every((word) => site.name.toLowerCase().includes(word)));
    if ($("#rows").value === "heads") return sites.flatMap(({ site, order }) => Array.from({ length: site.heads }, (_, head) => ({ site, order, head, value: (vital) => real(site.last[vital.name] ? site.last[vital.name][head] : null) })));
    return sites.map(({ site, order }) => ({ site, order, head: null, value: (vital) => worst(site.last[vital.name], vital.low_is_worse) }));
  }

  draw() {
    this.heads[1].querySelector("button").firstChild.textContent = $("#rows").value === "heads" ? "head" : "heads";
    const rows = this.rows(), { by, down } = this.sorted, entry = this.vitals.find((vital) => vital.name === by);
    const key = by === "site" ? (row) => row.order : by === "head" ? (row) => row.head ?? row.site.heads : entry && ((row) => row.value(entry));
    if (key) {
      const keys = new Map(rows.map((row) => [row, key(row)]));
      const missing = (x) => Number.isNaN(x);
      rows.sort((a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        if (missing(x) || missing(y)) return missing(x) - missing(y);
        return x === y ? a.order - b.order : (x < y ? -1 : 1) * (down ? -1 : 1);
      });
    }
    $("#table tbody").replaceChildren(...rows.slice(0, this.most).map((row) => this.row(row)));
    $("#numbers .more").hidden = rows.length <= this.most;
    $("#numbers .count").textContent = rows.length > this.most ? `${this.most} of ${rows.length} rows` : plural(rows.length, "row");
  }

  row(row) {
    const choose = () => this.state.choose({ site: row.site.name, head: row.head ?? -1 });
    return el("tr", { class: this.state.severity(row.site.name) || "", on: { click: choose } },
      el("th", { scope: "row" }, name(row.site.name, 34)),
      el("td", null, row.head === null ? `${row.site.heads || "–"}` : String(row.head)),
      this.vitals.map((vital) => {
        const value = row.value(vital), kind = this.state.alarm(row.site.name, vital.name, row.head);
        return el("td", { class: kind || (Number.isNaN(value) ? "missing" : null) }, shown(value));
      }));
  }
}
function worst(values, low) {
  let found = NaN;
  for (const x of (values || []).map(real)) if (!Number.isNaN(x) && (Number.isNaN(found) || (low ? x < found : x > found))) found = x;
  return found;
}
