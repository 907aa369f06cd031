// The heat map: a row for each attention call, a column for each head.
const RAMPS = {
  light: [[241, 243, 236], [168, 217, 200], [62, 158, 172], [31, 93, 150], [44, 27, 92]],
  dark: [[31, 38, 50], [38, 74, 122], [31, 138, 158], [106, 208, 165], [245, 247, 184]],
};
function colour(share) {
  const ramp = RAMPS[isDark() ? "dark" : "light"];
  const at = Math.min(Math.max(share, 0), 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2), part = at - low;
  return ramp[low].map((x, i) => Math.round(x + part * (ramp[low + 1][i] - x)));
}
const rgb = (parts) => `rgb(${parts.join(" ")})`;
const bright = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 140;

const SHEET = 840; // pixels that fit a sheet of paper: a canvas cannot break across pages

class HeatMap {
  constructor(record, state) {
    this.record = record;
    this.state = state;
    this.canvas = $(".heat-grid canvas");
    this.readout = $("#heat-readout");
    this.mostHeads = Math.max(...record.sites.map((site) => site.heads), 1);
    this.canvas.addEventListener("mousemove", (event) => this.tell(this.cellAt(event)));
    this.canvas.addEventListener("mouseleave", () => this.tell(this.chosen()));
    this.canvas.addEventListener("click", (event) => this.pick(this.cellAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.move(event));
  }

  layout() {
    const sites = this.record.sites.length, box = $(".heat-scroll").clientWidth;
    const longest = Math.max(...this.record.sites.map((site) => places([...visible(site.name)])));
    const wide = box > 520;
    this.row = sites <= 16 ? 30 : sites <= 40 ? 20 : 13;
    if (root.classList.contains("printing")) this.row = Math.min(this.row, Math.max(Math.floor(SHEET / sites), 4));
    this.labels = Math.min(longest * 7.4 + 14, wide ? Math.max(210, box - 2 - 84 * this.mostHeads) : 104);
    const room = (box - this.labels - 2) / this.mostHeads;
    this.cell = room < 3 ? 3 : Math.min(room, sites <= TALL ? 84 : 58);
    this.gap = this.cell > 9 ? 2 : this.cell > 5 ? 1 : 0;
    const signs = Math.max(Math.floor((this.labels - 14) / (this.row < 18 ? 6 : 7.4) + 0.01), 6); // + 0.01: rounding could otherwise cost a letter
    $(".heat-labels").replaceChildren(...this.record.sites.map((site) => {
      const kind = this.state.severity(site.name);
      return el("div", { class: kind || "", style: { height: `${this.row}px` } }, name(site.name, signs));
    }));
    $(".heat-labels").style.width = `${this.labels}px`;
    $(".heat-labels").classList.toggle("small", this.row < 18);
    const every = this.cell >= 20 ? 1 : Math.pow(2, Math.ceil(Math.log2(22 / this.cell)));
    $(".heat-heads").replaceChildren(...Array.from({ length: Math.ceil(this.mostHeads / every) }, (_, i) =>
      el("span", { style: { width: `${Math.min(every, this.mostHeads - i * every) * this.cell}px` } }, el("i", { style: { width: `${this.cell}px` } }, String(i * every)))));
  }

  draw() {
    this.layout();
    const { sites } = this.record, vital = this.state.vital;
    const width = this.cell * this.mostHeads, height = this.row * sites.length, dense = devicePixelRatio || 1;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * dense);
    this.canvas.height = Math.round(height * dense);
    const pen = this.canvas.getContext("2d");
    pen.scale(dense, dense);
    this.scale = scaleOf(sites.flatMap((site) => site.last[vital] || []));
    pen.font = `${this.row < 24 ? 10 : 11}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const written = this.cell >= 42 && this.row >= 20, alarm = css("--failure-solid"), none = css("--line");
    sites.forEach((site, y) => {
      const values = site.last[vital];
      for (let x = 0; x < site.heads; x++) this.drawCell(pen, x, y, real(values ? values[x] : null), { written, alarm, none });
    });
    this.mark(pen);
    this.drawScale();
    this.tell(this.chosen());
  }

  drawCell(pen, x, y, value, { written, alarm, none }) {
    const left = x * this.cell, top = y * this.row, w = this.cell - this.gap, h = this.row - Math.max(this.gap, 1);
    if (Number.isNaN(value)) {
      pen.strokeStyle = none;
      pen.lineWidth = 1;
      if (w > 4) pen.strokeRect(left + 0.5, top + 0.5, w - 1, h - 1);
      return;
    }
    const paint = Number.isFinite(value) ? colour(this.scale.at(value)) : null;
    pen.fillStyle = paint ? rgb(paint) : alarm;
    pen.beginPath();
    pen.roundRect(left, top, w, h, this.cell > 12 ? 3 : 0);
    pen.fill();
    if (written) {
      pen.fillStyle = paint && bright(paint) ? "#14202b" : "#ffffff";
      pen.fillText(shown(value), left + w / 2, top + h / 2 + 0.5, w - 2);
    }
  }

  mark(pen) {
    const { siteName, head } = this.state, y = this.record.sites.findIndex((one) => one.name === siteName);
    if (y < 0) return;
    const [left, w] = head < 0 ? [0, this.record.sites[y].heads * this.cell - this.gap] : [head * this.cell, this.cell - this.gap];
    const h = this.row - Math.max(this.gap, 1);
    // Two outlines, of which one is visible on any colour.
    for (const [ink, line, inset] of [[css("--card"), 4, 2], [css("--ink"), 2, 1]]) {
      pen.strokeStyle = ink;
      pen.lineWidth = line;
      pen.strokeRect(left + inset, y * this.row + inset, Math.max(w - 2 * inset, 1), Math.max(h - 2 * inset, 1));
    }
  }

  drawScale() {
    const strip = $(".scale canvas"), pen = strip.getContext("2d");
    strip.width = 160;
    strip.height = 1;
    for (let x = 0; x < 160; x++) { pen.fillStyle = rgb(colour(x / 159)); pen.fillRect(x, 0, 1, 1); }
    const unit = this.state.entry().unit, { low, high, log, empty } = this.scale;
    $(".scale").hidden = empty;
    $(".scale-low").textContent = shown(low);
    $(".scale-high").textContent = shown(high);
    $(".scale-kind").textContent = `${unit}${log ? ", log scale" : ""}`;
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / this.cell), y = Math.floor((event.clientY - box.top) / this.row);
    const site = this.record.sites[y];
    return site && x >= 0 && x < site.heads ? { site, head: x } : null;
  }
  chosen() {
    const site = this.state.site(this.state.siteName);
    return site ? { site, head: this.state.head } : null;
  }
  tell(cell) {
    if (!cell) { this.readout.textContent = ""; return; }
    const values = cell.site.last[this.state.vital];
    const text = cell.head < 0 ? plural(cell.site.heads, "head") : `head ${cell.head}: ${shown(values ? values[cell.head] : null)}`;
    this.readout.replaceChildren(name(cell.site.name, 40), ` ${text}`);
  }
  pick(cell) {
    if (!cell) return;
    const again = cell.site.name === this.state.siteName && cell.head === this.state.head;
    this.state.choose({ site: cell.site.name, head: again ? -1 : cell.head });
  }
  move(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const { sites } = this.record;
    const y = Math.min(Math.max(sites.findIndex((one) => one.name === this.state.siteName) + step[1], 0), sites.length - 1);
    const head = Math.min(Math.max(this.state.head + step[0], 0), sites[y].heads - 1);
    this.state.choose({ site: sites[y].name, head });
  }
}
