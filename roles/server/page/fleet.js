// The tiles, the fleet table and the hottest prefixes: all of one GetFleet.

import { $, el, setText, num, count, rate, percent, bytes, span, ago, dash, syncRows, hint, code } from "./dom.js";
import { recent } from "./charts.js";

export const mostRows = 300;

const states = {
  REPLICA_ALIVE: { name: "alive", class: "ok" },
  REPLICA_SUSPECT: { name: "suspect", class: "warn" },
  REPLICA_QUARANTINED: { name: "quarantined", class: "bad" },
  REPLICA_ASLEEP: { name: "asleep", class: "idle" },
  REPLICA_DEAD: { name: "dead", class: "bad" },
};

const streams = {
  STREAM_CONNECTING: { name: "connecting", class: "warn", title: "no connection to the engine's events yet" },
  STREAM_BOOTSTRAPPING: { name: "bootstrapping", class: "idle", title: "the engine's history is being read" },
  STREAM_EXACT: { name: "exact", class: "ok", title: "every event of the engine has been applied" },
  STREAM_DEGRADED: { name: "degraded", class: "warn", title: "what is reported is held; the engine may hold more" },
  STREAM_STALE: { name: "stale", class: "bad", title: "the engine is away or stuck: what is reported may be gone" },
};

const stateOf = (r) => states[r.state] ?? { name: "unknown", class: "idle" };

let last = null; // fleet shown

export function showFleet(fleet) {
  last = fleet;
  showTiles(fleet);
  showReplicas();
  showHot(fleet.hotPrefixes ?? [], num(fleet.decisions));
  for (const [list, key] of [["tenants", "tenantId"], ["models", "modelId"], ["schemes", "hashScheme"]]) {
    offer($(list), new Set((fleet.replicas ?? []).map((r) => r[key] ?? "")));
  }
}

// offer keeps a list of suggestions current without touching it in vain.
function offer(list, names) {
  const wanted = [...names].sort();
  if (wanted.join("\n") === list.offered) return;
  list.offered = wanted.join("\n");
  list.replaceChildren(...wanted.map((name) => el("option", { value: name })));
}

function showTiles(fleet) {
  const server = fleet.server;
  const all = Object.values(fleet.states ?? {}).reduce((sum, n) => sum + num(n), 0);
  const alive = num(fleet.states?.REPLICA_ALIVE);
  const rest = Object.entries(fleet.states ?? {}).filter(([state]) => state !== "REPLICA_ALIVE").map(([state, n]) => `${n} ${states[state]?.name ?? "unknown"}`);
  const { perSecond, share } = recent();
  const used = num(server.indexBytes);
  const limit = num(server.indexBytesLimit);
  const promised = num(server.promisedTokens);
  const found = num(server.foundTokens);
  tile("Replicas alive", `${alive} of ${all}`, rest.join(", ") || (all ? "none in trouble" : "nobody has reported"), rest.length ? "warn" : "");
  tile("Lookups a second", rate(perSecond), count(sum(server.lookups)) + " since the start");
  tile("Prefix matches", share === null ? "–" : percent(share), share === null ? "no lookups just now" : "of the last 20 s");
  tile("Index", bytes(used), limit ? `${percent(used / limit)} of ${bytes(limit)}; ${count(num(server.indexKeys))} blocks` : `${count(num(server.indexKeys))} blocks`, limit && used / limit > 0.9 ? "warn" : "");
  tile("Promises found", promised ? percent(found / promised) : "–", promised ? `${count(found)} of ${count(promised)} tokens` : "no outcomes reported");
  const policy = num(server.policyVersion);
  setText($("about"), `${server.version || "unknown version"}, up ${span(num(server.uptimeMs))}, ${policy ? "policy set " + policy : "own settings"}`);
}

const sum = (map) => Object.values(map ?? {}).reduce((total, n) => total + num(n), 0);

function tile(name, value, note, kind = "") {
  const tiles = $("tiles");
  let one = [...tiles.children].find((child) => child.key === name);
  if (!one) {
    one = el("div", {}, el("dt", {}, name), el("dd", { class: "value" }), el("dd", { class: "note" }));
    one.key = name;
    tiles.append(one);
  }
  one.className = "card tile " + kind;
  setText(one.children[1], value);
  setText(one.children[2], note);
}

export function showReplicas() {
  if (!last) return;
  const words = $("fleet-find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = last.replicas ?? [];
  const scopes = new Set(all.map(scopeOf)).size;
  const found = all.filter((r) => {
    const text = [r.replicaId, r.modelId, r.tenantId, r.hashScheme, stateOf(r).name, streams[r.streamState]?.name, r.engineUrl].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  const total = sum(last.states);
  setText($("fleet-count"), found.length === total ? `${total} replicas` : `${Math.min(found.length, mostRows)} of ${total} replicas`);
  const body = $("fleet-table").tBodies[0];
  syncRows(body, found.slice(0, mostRows), (r) => JSON.stringify([scopeOf(r), r.replicaId]), (r) => cellsOf(r, scopes > 1), (r) => (r.state === "REPLICA_DEAD" ? "gone" : ""));
  $("fleet-table").parentElement.hidden = found.length === 0;
  emptyFleet(all.length, found.length);
}

const scopeOf = (r) => [r.tenantId, r.modelId, r.hashScheme].join(" / ");

function emptyFleet(all, found) {
  const empty = $("fleet-empty");
  empty.hidden = found > 0;
  const kind = all > 0 ? "filter" : "nobody";
  if (found > 0 || empty.kind === kind) return;
  empty.kind = kind;
  if (all > 0) {
    empty.replaceChildren(hint("No replica fits what you look for."));
    return;
  }
  empty.replaceChildren(
    hint("No replica has reported anything to this server."),
    hint("Start a subscriber beside each engine: ", code(`inferencecache run --role=subscriber --server ${location.origin} --replica-id NAME --tenant-id TENANT --model-id MODEL --engine-endpoint tcp://127.0.0.1:5557`)),
    hint("If subscribers run, see their logs and ", code("/debug/state"), ": do they name this server? For a look around without engines: ", code("inferencecache run --role=all"), "."));
}

function cellsOf(r, withScope) {
  const state = stateOf(r);
  const stream = streams[r.streamState] ?? { name: "not said", class: "idle", title: "its producer does not say" };
  const stats = r.stats ?? {};
  const load = (value) => (value === undefined ? dash() : count(num(value)));
  return [
    [{ text: r.replicaId, class: "name", title: r.engineUrl }, withScope && { text: " " + scopeOf(r), class: "muted small scope" }].filter(Boolean),
    { text: state.name, class: "badge " + state.class, title: r.stateDetail },
    load(stats.runningRequests),
    load(stats.waitingRequests),
    r.loadKnown ? { text: span(num(r.backlogMs)), title: `load reported ${ago(num(r.loadAgeMs))} ago` } : dash(),
    count(num(r.recentHints)),
    heldCell(r),
    indexedCell(r),
    { text: stream.name, class: "badge " + stream.class, title: stream.title },
    ago(num(r.heardAgeMs)),
    ago(num(r.changedAgeMs)),
    auditCell(r.audit ?? {}),
  ];
}

function heldCell(r) {
  if (!r.held) return dash();
  const tiers = ["t1", "t2", "t3"].map((tier) => num(r.held[tier]));
  const parts = [{ text: count(tiers[0] + tiers[1] + tiers[2]), class: "" }];
  if (tiers[1] + tiers[2] > 0) parts.push({ text: ` T1 ${count(tiers[0])} · T2 ${count(tiers[1])} · T3 ${count(tiers[2])}`, class: "muted small" });
  return parts;
}

// indexedCell marks a count that is not what the replica says, while it has
// nothing new to say.
function indexedCell(r) {
  const indexed = num(r.indexedBlocks);
  if (!r.held || num(r.changedAgeMs) < 2000 || num(r.heldAgeMs) > num(r.changedAgeMs)) return count(indexed);
  const held = num(r.held.t1) + num(r.held.t2) + num(r.held.t3);
  if (Math.abs(held - indexed) <= Math.max(16, held / 50)) return count(indexed);
  return { text: count(indexed), class: "differs", title: `the replica says that it holds ${count(held)}: entries were evicted from the index, or reports were lost` };
}

function auditCell(audit) {
  const outcomes = num(audit.outcomes);
  const promised = num(audit.promisedTokens);
  if (!outcomes || !promised) return { text: "no outcomes", class: "muted" };
  const share = num(audit.foundTokens) / promised;
  return [{ text: percent(share), class: audit.quarantined ? "badge bad" : "" }, { text: ` of ${count(promised)} tokens, ${count(outcomes)} outcomes`, class: "muted small" }];
}

function showHot(hot, decisions) {
  setText($("hot-count"), decisions ? `in the latest ${count(decisions)} lookups` : "");
  const body = $("hot-table").tBodies[0];
  syncRows(body, hot, (p) => [p.tenantId, p.modelId, p.hashScheme, p.adapterId, p.hash].join(" "), (p) => [
    { text: p.hash, class: "mono name" },
    [p.modelId ?? "", { text: ` ${p.tenantId ?? ""}${p.adapterId ? " · " + p.adapterId : ""}`, class: "muted small" }],
    count(num(p.blocks)),
    count(num(p.lookups)),
    rate(num(p.lookupsPerSecond)),
    holdersCell(p),
    shareCell(p),
  ]);
  $("hot-table").parentElement.hidden = hot.length === 0;
  const empty = $("hot-empty");
  empty.hidden = hot.length > 0;
  const kind = decisions ? "apart" : "none";
  if (hot.length > 0 || empty.kind === kind) return;
  empty.kind = kind;
  if (decisions) {
    empty.replaceChildren(hint("No two of the latest lookups begin alike: there is nothing to share."));
  } else {
    empty.replaceChildren(
      hint("No lookup has named a replica yet. Once gateways ask, this shows what their prompts have in common, who holds it, and whether one replica gets it all."),
      hint("Ask once yourself: ", code("inferencecache lookup --tenant TENANT --model MODEL --text \"…\""), "."));
  }
}

function holdersCell(p) {
  const holders = num(p.holders);
  if (holders === 0) return { text: "nobody", class: "muted" };
  const ids = p.holderIds ?? [];
  return [count(holders), { text: " " + ids.slice(0, 3).join(", ") + (holders > 3 ? ", …" : ""), class: "muted small", title: ids.join(", ") }];
}

function shareCell(p) {
  if (!p.mostHinted) return dash();
  const share = num(p.mostShare);
  const skewed = share > 0.8 && num(p.holders) > 2;
  return [{ text: p.mostHinted, class: "" }, { text: " " + percent(share), class: skewed ? "differs" : "muted", title: skewed ? "most go to one replica although several hold it" : undefined }];
}
