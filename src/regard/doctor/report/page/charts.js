// The course over time and the histogram over heads, drawn as SVG in the size of their container.
const HEIGHT = 230, PAD = { left: 48, right: 14, top: 12, bottom: 28 };

function frame(holder) {
  const width = Math.max(holder.clientWidth, 200);
  const plot = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img" });
  holder.replaceChildren(plot);
  return { plot, width, right: width - PAD.right, bottom: HEIGHT - PAD.bottom };
}

// About so many round numbers within a range, for the ticks of an axis; powers of ten on a log scale.
function ticks(low, high, count, log) {
  if (log) {
    const from = Math.ceil(Math.log10(low) - 1e-9), to = Math.floor(Math.log10(high) + 1e-9);
    const step = Math.max(1, Math.ceil((to - from + 1) / count));
    const found = [];
    for (let e = from; e <= to; e += step) found.push(10 ** e);
    if (found.length >= 2) return found;
    return [low, Math.sqrt(low * high), high];
  }
  if (high <= low) return [low];
  const rough = (high - low) / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((x) => x * size >= rough) * size;
  const found = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-9; x += step) found.push(Number(x.toPrecision(12)));
  return found;
}

function drawCourse(record, state) {
  const holder = $("#course .plot"), readout = $("#course .readout");
  const site = state.site(state.siteName), course = site && site.courses[state.vital];
  readout.textContent = "";
  if (!course) {
    holder.replaceChildren(el("p", { class: "empty" }, "Not measured at this attention call."));
    return;
  }
  const steps = record.axes[course.axis], line = course.heads[state.head];
  const limits = record.findings.filter((f) => f.site === site.name)
    .flatMap((f) => f.signals.filter((s) => s.vital === state.vital).map((s) => ({ at: real(s.threshold), kind: f.severity, since: f.since })))
    .filter((limit) => Number.isFinite(limit.at));
  const scale = scaleOf([...course.low, ...course.high, ...limits.map((limit) => limit.at)]);
  if (!scale.log && scale.high > scale.low && scale.low > 0 && scale.low < 0.4 * scale.high) widen(scale, 0, scale.high);
  if (scale.high === scale.low) widen(scale, scale.low - (Math.abs(scale.low) || 1) / 2, scale.high + (Math.abs(scale.high) || 1) / 2);
  const { plot, right, bottom } = frame(holder);
  const first = steps[0], last = steps.at(-1);
  const X = (step) => last > first ? PAD.left + (right - PAD.left) * (step - first) / (last - first) : (PAD.left + right) / 2;
  const Y = (value) => bottom - (bottom - PAD.top) * Math.min(Math.max(scale.at(value), 0), 1);
  axes(plot, right, bottom, ticks(scale.low, scale.high, 4, scale.log).map((t) => [Y(t), shown(t)]), ticks(first, last, 5, false).filter(Number.isInteger).map((t) => [X(t), String(t)]));
  const points = (values) => values.map((v, i) => [steps[i], real(v)]).filter(([, v]) => !Number.isNaN(v)).map(([s, v]) => [X(s), Y(v)]);
  const up = points(course.high), down = points(course.low).reverse();
  if (site.heads > 1) plot.append(svg("path", { class: "band", d: `M${[...up, ...down].map((p) => p.map(short).join(" ")).join("L")}Z` }));
  if (!line || site.heads > 1) trace(plot, points(course.mean), "mean");
  if (line) trace(plot, points(line), "head");
  for (const limit of limits) {
    plot.append(svg("line", { class: `limit ${limit.kind}`, x1: PAD.left, x2: right, y1: Y(limit.at), y2: Y(limit.at) }));
    if (limit.since > first) plot.append(svg("line", { class: `since ${limit.kind}`, x1: X(limit.since), x2: X(limit.since), y1: PAD.top, y2: bottom }));
  }
  const about = site.heads > 1 ? `band: all ${site.heads} heads, thin line: their mean` : "its only head";
  const rest = state.head < 0 ? "" : line ? `, thick line: head ${state.head}` : `; head ${state.head} has no course of its own`;
  readout.textContent = about + rest + (limits.length ? ", dashed: threshold" : "") + (limits.some((limit) => limit.since > first) ? ", dotted: since when" : "");
  plot.setAttribute("aria-label", `${state.vital} of ${site.name} over steps ${first} to ${last}`);
  hover(plot, steps, X, Y, course, line, bottom);
}
function widen(scale, low, high) {
  Object.assign(scale, { low, high, log: false, at: (x) => x === Infinity ? 1 : x === -Infinity ? 0 : (x - low) / (high - low) });
}
const short = (x) => Number(x.toFixed(1));
function trace(plot, points, kind) {
  if (points.length === 1) plot.append(svg("circle", { class: `point ${kind}`, cx: points[0][0], cy: points[0][1], r: 4 }));
  else plot.append(svg("path", { class: `trace ${kind}`, d: `M${points.map((p) => p.map(short).join(" ")).join("L")}` }));
}
function axes(plot, right, bottom, rows, columns) {
  for (const [y, text] of rows) plot.append(svg("line", { class: "grid", x1: PAD.left, x2: right, y1: y, y2: y }), svg("text", { class: "tick", x: PAD.left - 8, y: y + 4, "text-anchor": "end" }, text));
  for (const [x, text] of columns) plot.append(svg("text", { class: "tick", x, y: bottom + 18, "text-anchor": "middle" }, text));
  plot.append(svg("line", { class: "base", x1: PAD.left, x2: right, y1: bottom, y2: bottom }));
}
function hover(plot, steps, X, Y, course, line, bottom) {
  const cross = svg("g", { class: "cross", visibility: "hidden" }, svg("line", { y1: PAD.top, y2: bottom }), svg("circle", { r: 3.5 }), svg("text", { y: PAD.top + 2 }));
  plot.append(cross);
  plot.addEventListener("mousemove", (event) => {
    const x = event.clientX - plot.getBoundingClientRect().left;
    let at = 0;
    steps.forEach((step, i) => { if (Math.abs(X(step) - x) < Math.abs(X(steps[at]) - x)) at = i; });
    const value = real((line || course.mean)[at]);
    const [rule, dot, text] = cross.children, here = X(steps[at]);
    if (Number.isNaN(value)) { cross.setAttribute("visibility", "hidden"); return; }
    rule.setAttribute("x1", here);
    rule.setAttribute("x2", here);
    dot.setAttribute("cx", here);
    dot.setAttribute("cy", Y(value));
    text.textContent = `step ${steps[at]}: ${shown(value)}${line ? "" : ` (${shown(course.low[at])} to ${shown(course.high[at])})`}`;
    const late = here > plot.clientWidth / 2;
    text.setAttribute("x", here + (late ? -8 : 8));
    text.setAttribute("text-anchor", late ? "end" : "start");
    cross.setAttribute("visibility", "visible");
  });
  plot.addEventListener("mouseleave", () => cross.setAttribute("visibility", "hidden"));
}

function drawSpread(record, state) {
  const holder = $("#spread .plot"), readout = $("#spread .readout");
  const all = record.sites.flatMap((site) => (site.last[state.vital] || []).map((x) => [real(x), site.name === state.siteName]));
  const finite = all.filter(([x]) => Number.isFinite(x)), infinite = all.filter(([x]) => Math.abs(x) === Infinity).length;
  readout.textContent = "";
  if (!finite.length) {
    holder.replaceChildren(el("p", { class: "empty" }, infinite ? `Infinite in ${plural(infinite, "head")}.` : "Not measured."));
    return;
  }
  const scale = scaleOf(finite.map(([x]) => x)), { plot, right, bottom } = frame(holder);
  if (scale.high === scale.low) widen(scale, scale.low - (Math.abs(scale.low) || 1) / 2, scale.high + (Math.abs(scale.high) || 1) / 2);
  const count = Math.min(Math.max(Math.ceil(2 * Math.cbrt(finite.length)), 5), 40);
  const bins = Array.from({ length: count }, () => [0, 0]);
  for (const [x, own] of finite) bins[Math.min(Math.floor(scale.at(x) * count), count - 1)][own ? 0 : 1] += 1;
  const tallest = Math.max(...bins.map(([a, b]) => a + b));
  const X = (share) => PAD.left + (right - PAD.left) * share, Y = (n) => bottom - (bottom - PAD.top) * n / tallest;
  const marks = ticks(scale.low, scale.high, 4, scale.log).map((t) => [X(scale.at(t)), shown(t)]);
  axes(plot, right, bottom, ticks(0, tallest, 3, false).filter(Number.isInteger).map((t) => [Y(t), String(t)]), marks);
  bins.forEach(([own, others], i) => {
    const left = X(i / count) + 1, width = Math.max(X((i + 1) / count) - X(i / count) - 2, 1);
    const bar = (kind, from, n) => n && plot.append(svg("rect", { class: kind, x: left, width, y: Y(from + n), height: Y(from) - Y(from + n), rx: Math.min(2, width / 3) }));
    bar("own", 0, own);
    bar("others", own, others);
  });
  const site = state.site(state.siteName), chosen = site && state.head >= 0 ? real((site.last[state.vital] || [])[state.head]) : NaN;
  if (Number.isFinite(chosen)) plot.append(svg("line", { class: "chosen", x1: X(scale.at(chosen)), x2: X(scale.at(chosen)), y1: PAD.top, y2: bottom }));
  readout.textContent = (record.sites.length > 1 ? "blue: this call, grey: all others" : "the heads of this call")
    + (Number.isFinite(chosen) ? `, line: head ${state.head}` : "") + (infinite ? `; ${infinite} infinite` : "");
  plot.setAttribute("aria-label", `Histogram of ${state.vital} over ${plural(finite.length, "head")}, from ${shown(scale.low)} to ${shown(scale.high)}`);
}
