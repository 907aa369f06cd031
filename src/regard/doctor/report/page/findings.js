// Findings as cards, and the board of attention calls above them.
// For a disease at several places the remedies are written out once and folded in later cards.
function findingCard(finding, state, again) {
  const site = state.site(finding.site);
  const heads = finding.heads;
  const which = !heads.length || !site ? null
    : heads.length === site.heads ? (site.heads === 1 ? "its only head" : `all ${site.heads} heads`)
    : `${heads.length === 1 ? "head" : "heads"} ${ranges(heads)} of ${site.heads}`;
  const facts = [which, `since step ${finding.since}`, `${Math.round(100 * real(finding.confidence))}% sure`];
  const vital = finding.signals.map((s) => s.made_of).find((v) => state.vitals.has(v));
  const open = site && vital && el("button", {
    type: "button", class: "plain",
    on: { click: () => { state.choose({ vital, site: site.name, head: heads[0] ?? -1 }); $("#vitals").scrollIntoView(); $("#pick-vital").focus({ preventScroll: true }); } },
  }, "Show in the charts");
  return el("article", { class: `card finding ${finding.severity}`, "data-severity": finding.severity },
    el("header", null, el("span", { class: "badge" }, sign(finding.severity), finding.severity), el("span", { class: "disease" }, finding.disease)),
    el("h3", null, finding.title.slice(0, 1).toUpperCase() + finding.title.slice(1)),
    el("p", { class: "place" }, el("code", null, name(finding.site)), el("span", { class: "facts" }, facts.filter(Boolean).join(" · "))),
    el("p", { class: "explanation" }, finding.explanation),
    el("div", { class: "signals" }, finding.signals.map(signalRow)),
    finding.remedies.length ? remedies(finding, again) : null,
    open);
}

function signalRow(signal) {
  const value = real(signal.value), threshold = real(signal.threshold);
  const bad = signal.above ? "above" : "below";
  return el("div", { class: "signal" },
    el("p", { class: "signal-name" }, el("code", null, signal.vital), el("b", null, shown(value)), el("span", null, ` ${bad} ${shown(threshold)}`)),
    gauge(value, threshold, signal.above),
    el("p", { class: "source" }, signal.source));
}

// The number against its threshold, with the unhealthy side tinted.
function gauge(value, threshold, above) {
  const parts = [value, threshold].map(Math.abs).filter((x) => Number.isFinite(x) && x > 0);
  const most = Math.max(...parts, 1e-30), least = Math.min(...parts, most);
  const log = most / least > 20 && value > 0 && threshold > 0;
  const place = (x) => {
    if (!Number.isFinite(x)) return x > 0 ? 100 : 0;
    const share = log ? Math.log(x / (least / 3)) / Math.log((most * 3) / (least / 3))
      : value < 0 || threshold < 0 ? 0.5 + x / (2.4 * most) : x / (1.25 * most);
    return 100 * Math.min(Math.max(share, 0), 1);
  };
  const at = place(threshold), to = place(value);
  return el("div", { class: "gauge", "aria-hidden": "true" },
    el("span", { class: "zone", style: above ? { left: `${at}%`, right: "0" } : { left: "0", width: `${at}%` } }),
    el("span", { class: "limit", style: { left: `${at}%` } }),
    el("span", { class: "dot", style: { left: `${Number.isNaN(to) ? 0 : to}%` } }));
}

function remedies(finding, again) {
  const hint = finding.remedies.some((remedy) => remedy.code) && el("p", { class: "hint" }, "In the code ", el("code", null, "d"), " is the doctor that watches the model, ", el("code", null, "batch"), " is an input of the model, and ", el("code", null, "finding"), " is this finding; the copied code looks it up first.");
  const title = again ? el("summary", null, el("b", null, "What helps, as above: "), finding.remedies.map((remedy) => remedy.remedy).join(", ")) : el("h4", null, "What helps");
  return el(again ? "details" : "div", { class: "remedies" }, title, el("ol", null, finding.remedies.map((remedy) => el("li", null,
    el("p", null, el("b", null, remedy.remedy), ` ${remedy.expected}`),
    remedy.by_hand ? el("p", { class: "by-hand" }, remedy.by_hand) : null,
    remedy.code ? el("div", { class: "code" }, el("pre", { tabindex: "0" }, el("code", null, remedy.code)), copier(`${finding.code}\n${remedy.code}`)) : null))),
  hint || null);
}

function copier(text) {
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  copyButton(button, () => text, saying("Copied"));
  return button;
}

const MOST_CARDS = 40;
function drawFindings(record, state) {
  const cards = $("#findings .cards"), chips = $("#findings .chips");
  if (!record.findings.length) {
    const seen = record.sites.some((site) => Object.keys(site.last).length);
    cards.append(el("p", { class: "card quiet" }, seen
      ? "Nothing to report: every number is within its bounds."
      : "Nothing was measured, so there is no verdict. The notes below may tell why."));
    return;
  }
  let wanted = null, most = MOST_CARDS;
  const more = el("button", { type: "button", class: "more", on: { click: () => { most += MOST_CARDS; show(); } } }, "Show more findings");
  const show = () => {
    const fits = record.findings.filter((f) => !wanted || f.severity === wanted);
    const said = new Set();
    cards.replaceChildren(...fits.slice(0, most).map((f) => findingCard(f, state, said.has(f.disease) || !said.add(f.disease))));
    if (fits.length > most) cards.append(more);
  };
  const kinds = SEVERITIES.filter((s) => record.findings.some((f) => f.severity === s));
  if (kinds.length > 1) for (const kind of kinds) {
    const count = record.findings.filter((f) => f.severity === kind).length;
    const chip = el("button", { type: "button", class: `chip ${kind}`, "aria-pressed": "false" }, sign(kind), plural(count, kind));
    chip.addEventListener("click", () => {
      wanted = wanted === kind ? null : kind;
      most = MOST_CARDS;
      for (const other of chips.children) other.setAttribute("aria-pressed", String(other === chip && wanted === kind));
      show();
    });
    chips.append(chip);
  }
  show();
}

function drawBoard(record, state) {
  if (!record.sites.length) return;
  $("#calls").hidden = false;
  const counts = {};
  for (const [index, site] of record.sites.entries()) {
    const kind = state.severity(site.name) || (Object.keys(site.last).length ? "good" : "none");
    counts[kind] = (counts[kind] || 0) + 1;
    const tile = el("button", {
      type: "button", class: `tile ${kind}`, title: site.name,
      "aria-label": `${site.name}: ${kind === "good" ? "healthy" : kind === "none" ? "not measured" : kind}`,
      on: { click: () => { state.choose({ site: site.name, head: -1 }); $("#vitals").scrollIntoView(); } },
    }, String(index + 1));
    $("#calls .tiles").append(el("li", null, tile));
  }
  const words = { failure: "with a failure", warning: "with a warning", note: "with a note", good: "healthy", none: "not measured" };
  for (const [kind, word] of Object.entries(words))
    if (counts[kind]) $("#calls .legend").append(el("li", { class: kind }, el("span", { class: "swatch" }), `${counts[kind]} ${word}`));
}
