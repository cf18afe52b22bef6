// The two charts: what the server's counters grew by between polls. It keeps no
// history for us, so they begin when the page is opened.

import { $, el, svg, setText, num, rate, percent } from "./dom.js";

const kept = 15 * 60 * 1000; // milliseconds
const width = 600;
const height = 150;

// Groups of reason codes, from the bottom of the chart up.
const groups = [
  { name: "prefix match", class: "g0", codes: ["PREFIX_MATCH"] },
  { name: "by load", class: "g1", codes: ["LOAD_HINT"] },
  { name: "affinity", class: "g2", codes: ["AFFINITY_HINT", "TENANT_HOT"] },
  { name: "no hint", class: "g3", codes: ["NO_HINT", "SHADOW"] },
  { name: "trouble", class: "g4", codes: [] }, // every other code
];

const groupOf = (code) => {
  const i = groups.findIndex((group) => group.codes.includes(code));
  return i < 0 ? groups.length - 1 : i;
};

let samples = []; // {at, rates: by group, calls, matches}
let before = null; // the counters last read

// sample takes in the counters of one poll. A new epoch is another server, or
// one that counts from 0 again.
export function sample(fleet) {
  const at = num(fleet.atUs) / 1000;
  const lookups = fleet.server.lookups ?? {};
  const now = { at, epoch: fleet.server.epoch, lookups };
  if (before && before.epoch === now.epoch && at > before.at) {
    const seconds = (at - before.at) / 1000;
    const one = { at, rates: groups.map(() => 0), calls: 0, matches: 0 };
    for (const [code, n] of Object.entries(lookups)) {
      const grown = Math.max(0, num(n) - num(before.lookups[code]));
      one.rates[groupOf(code)] += grown / seconds;
      one.calls += grown;
      if (code === "PREFIX_MATCH") one.matches += grown;
    }
    samples.push(one);
    samples = samples.filter((old) => at - old.at <= kept);
  }
  before = now;
}

// recent sums up the last seconds: lookups a second and the share with a match.
export function recent(ms = 20000) {
  const last = samples.at(-1);
  const window = last ? samples.filter((one) => last.at - one.at < ms) : [];
  const calls = window.reduce((sum, one) => sum + one.calls, 0);
  const matches = window.reduce((sum, one) => sum + one.matches, 0);
  const perSecond = window.length ? window.reduce((sum, one) => sum + one.rates.reduce((a, b) => a + b, 0), 0) / window.length : 0;
  return { perSecond, share: calls ? matches / calls : null };
}

export function draw() {
  drawReasons();
  drawHits();
}

function drawReasons() {
  const totals = samples.map((one) => one.rates.reduce((a, b) => a + b, 0));
  const top = ceiling(Math.max(0, ...totals));
  const parts = [];
  let floor = samples.map(() => 0);
  groups.forEach((group, i) => {
    const line = samples.map((one, j) => floor[j] + one.rates[i]);
    parts.push(svg("path", { class: "area " + group.class, d: band(floor, line, top) }));
    floor = line;
  });
  const last = samples.at(-1);
  const label = last ? `${rate(totals.at(-1))} lookups a second now, ${rate(Math.max(...totals))} at most` : "no lookups yet";
  $("reasons").replaceChildren(frame(label, rate(top), parts, totals.some((n) => n > 0) ? "" : "No lookups since this page was opened"));
  drawLegend(last);
}

function drawLegend(last) {
  const legend = $("legend");
  if (legend.childElementCount === 0) {
    for (const group of groups) legend.append(el("li", {}, el("span", { class: "swatch " + group.class }), group.name + " ", el("b", {}, "0")));
  }
  groups.forEach((_, i) => setText(legend.children[i].lastElementChild, rate(last ? last.rates[i] : 0)));
}

// drawHits draws the share, over the samples that had lookups and smoothed over
// five of these: single lookups jump.
function drawHits() {
  const asked = samples.filter((one) => one.calls > 0);
  const points = asked.map((one, i) => {
    const window = asked.slice(Math.max(0, i - 4), i + 1);
    const calls = window.reduce((sum, w) => sum + w.calls, 0);
    return [x(one.at), y(window.reduce((sum, w) => sum + w.matches, 0) / calls, 1)];
  });
  const d = points.map(([px, py], i) => (i ? "L" : "M") + px.toFixed(1) + " " + py.toFixed(1)).join("");
  const parts = points.length === 0 ? [] : [svg("path", { class: "line", d }), svg("circle", { class: "dot", cx: points.at(-1)[0], cy: points.at(-1)[1], r: 3.5 })];
  const { share } = recent(60000);
  const label = share === null ? "no lookups in the last minute" : `${percent(share)} of lookups in the last minute had a prefix match`;
  $("hits").replaceChildren(frame(label, "100 %", parts, points.length ? "" : "No lookups since this page was opened"));
}

const left = 6;
const right = 594;
const low = 128;
const high = 14;

// x places a time: the right edge is now, the left one as long ago as is kept or
// as there are samples.
function x(at) {
  const now = samples.at(-1).at;
  return right - ((now - at) / shown()) * (right - left);
}

// shown is how much of the past the charts span.
function shown() {
  if (samples.length < 2) return 60000;
  const age = samples.at(-1).at - samples[0].at;
  return [60000, 120000, 300000, kept].find((span) => age <= span) ?? kept;
}

const y = (value, top) => low - (value / top) * (low - high);

function band(floor, line, top) {
  if (samples.length < 2) return "";
  const there = samples.map((one, i) => x(one.at).toFixed(1) + " " + y(line[i], top).toFixed(1));
  const back = samples.map((one, i) => x(one.at).toFixed(1) + " " + y(floor[i], top).toFixed(1)).reverse();
  return "M" + there.concat(back).join("L") + "Z";
}

// ceiling is the next round number.
function ceiling(value) {
  if (value <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((round) => round >= value);
}

function frame(label, most, parts, empty) {
  const grid = [0, 0.5, 1].map((part) => svg("line", { class: "grid", x1: left, x2: right, y1: y(part, 1), y2: y(part, 1) }));
  const minutes = shown() / 60000;
  const texts = [
    svg("text", { x: left, y: 10 }, most),
    svg("text", { x: left, y: height - 6 }, minutes === 1 ? "1 minute ago" : minutes + " minutes ago"),
    svg("text", { x: right, y: height - 6, "text-anchor": "end" }, "now"),
  ];
  if (empty) texts.push(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "none" }, empty));
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...grid, ...parts, ...texts);
}
