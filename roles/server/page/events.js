// Live events, by the server's stream. A row of the table is one change; what
// comes faster than people read is counted and the newest are shown.

import { $, setText, num, count, rate, syncRows, hint } from "./dom.js";
import { stream } from "./rpc.js";

const shown = 40;
const retryMs = 3000;

const names = {
  PREFIX_ADDED: { name: "added", class: "ok" },
  PREFIX_EVICTED: { name: "evicted", class: "idle" },
  ALL_CLEARED: { name: "cleared", class: "bad" },
  REPLICA_UPDATED: { name: "updated", class: "idle" },
};

let rows = []; // newest first
let order = 0;
let came = 0; // since the last paint
let painted = Date.now();
let stop = null; // ends the stream that is open
let trouble = "";

// follow opens the stream and opens it again when it ends, until hush.
export function follow() {
  if (stop) return;
  stop = new AbortController();
  const type = $("events-type").value;
  run(stop, type ? { types: [type] } : {});
}

export function hush() {
  stop?.abort();
  stop = null;
}

async function run(mine, request) {
  while (!mine.signal.aborted) {
    try {
      await stream("StreamCacheEvents", request, heed, () => { trouble = ""; }, mine.signal);
    } catch (error) {
      if (mine.signal.aborted) return;
      trouble = error.message;
    }
    await new Promise((resolve) => setTimeout(resolve, retryMs));
  }
}

function heed(event) {
  came++;
  rows.unshift({ ...event, order: order++ });
  rows.length = Math.min(rows.length, shown);
}

// paint shows what has come since; it is called once in a while.
export function paint() {
  const now = Date.now();
  const perSecond = came / Math.max(0.5, (now - painted) / 1000);
  [came, painted] = [0, now];
  setText($("events-count"), stop ? (trouble ? "interrupted: " + trouble : rate(perSecond) + " a second") : "paused");
  syncRows($("events-table").tBodies[0], rows, (e) => e.order, cellsOf);
  $("events-table").parentElement.hidden = rows.length === 0;
  const empty = $("events-empty");
  empty.hidden = rows.length > 0;
  if (rows.length === 0 && !empty.firstChild) {
    empty.replaceChildren(hint("Nothing has changed since this page was opened. Engines store blocks when they compute prompts: send one a prompt and watch it here."));
  }
}

function cellsOf(e) {
  const kind = names[e.type] ?? { name: "unknown", class: "idle" };
  const blocks = e.packedHashes ? Math.floor((e.packedHashes.length * 3) / 4 / 8) : e.prefixHash ? 1 : 0;
  return [
    new Date(num(e.timestampUs) / 1000).toLocaleTimeString(),
    { text: kind.name, class: "badge " + kind.class },
    { text: e.replicaId ?? "", class: "name" },
    [e.modelId ?? "", { text: ` ${e.tenantId ?? ""}${e.adapterId ? " · " + e.adapterId : ""}`, class: "muted small" }],
    blocks ? count(blocks) : "",
    { text: firstHash(e.packedHashes || e.prefixHash), class: "mono" },
  ];
}

// firstHash is the first 8 bytes of base64, in hex.
function firstHash(base64) {
  if (!base64) return "";
  const bytes = atob(base64.slice(0, 12)).slice(0, 8);
  return [...bytes].map((c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join("");
}

export function startEvents() {
  $("events-type").addEventListener("change", () => {
    rows = [];
    if (!stop) return;
    hush();
    follow();
  });
}
