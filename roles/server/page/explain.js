// "Why this replica?": the form and the answer of Explain.

import { $, el, num, count, percent, syncRows, hint } from "./dom.js";
import { call } from "./rpc.js";

const kinds = {
  request: { label: "Request id", rows: 1, hint: "The request_id of a LookupRoute answer. The server remembers the latest ones." },
  text: { label: "Prompt", rows: 4, hint: "The server asks an engine of the model to tokenize it. It goes to the server and is not kept there." },
  tokens: { label: "Token ids", rows: 4, hint: "Separated by commas or spaces, from the prompt's first token on." },
  hashes: { label: "Block hashes", rows: 4, hint: "In hex, 16 digits each, separated by commas or spaces, from the prompt's first block on." },
};

export function startExplain() {
  const form = $("why");
  form.addEventListener("change", (event) => {
    if (event.target.name === "by") choose(form.elements.by.value);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form);
  });
  choose("request");
}

// choose lays the form out for a kind of question.
function choose(kind) {
  const { label, rows, hint: text } = kinds[kind];
  $("why-label").textContent = label;
  $("why-input").rows = rows;
  $("why-hint").textContent = text;
  const names = $("why-names");
  names.hidden = kind === "request";
  for (const input of names.querySelectorAll("input")) {
    input.disabled = names.hidden;
    const list = input.list?.options;
    if (list?.length === 1 && !input.value) input.value = list[0].value;
  }
  $("why-size").hidden = kind !== "hashes";
}

async function ask(form) {
  const button = form.querySelector("button");
  button.disabled = true;
  let shown;
  try {
    shown = describe(await call("Explain", question(form)));
  } catch (error) {
    shown = [el("p", { class: "notice bad" }, "Not explained: " + error.message)];
  } finally {
    button.disabled = false;
  }
  const answer = $("why-answer");
  answer.replaceChildren(...shown);
  answer.hidden = false;
  answer.focus({ preventScroll: true });
  answer.scrollIntoView({ block: "nearest" });
}

const wordsOf = (text) => text.split(/[\s,[\]"]+/).filter(Boolean);

// question makes the request; what cannot be read is an error that says so.
function question(form) {
  const f = form.elements;
  const text = f.input.value;
  if (f.by.value === "request") return { requestId: text.trim() };
  const lookup = { tenantId: f.tenant.value.trim(), modelId: f.model.value.trim(), hashScheme: f.scheme.value.trim(), adapterId: f.adapter.value.trim() };
  switch (f.by.value) {
    case "text":
      lookup.promptText = text;
      break;
    case "tokens":
      lookup.tokenIds = wordsOf(text).map((word) => {
        if (!/^\d{1,10}$/.test(word)) throw new Error(`"${word}" is not a token id`);
        return Number(word);
      });
      break;
    default:
      lookup.packedHashes = pack(wordsOf(text));
      lookup.packedBlockSize = Number(f.size.value);
  }
  return { lookup };
}

// pack lays hashes end to end, in base64 as JSON carries bytes.
function pack(words) {
  let bytes = "";
  for (const word of words) {
    if (!/^[0-9a-f]{16}$/i.test(word)) throw new Error(`"${word}" is not a hash: 16 hex digits`);
    for (let i = 0; i < 16; i += 2) bytes += String.fromCharCode(parseInt(word.slice(i, i + 2), 16));
  }
  return btoa(bytes);
}

const ms = (value) => (Math.abs(num(value)) < 0.05 ? "0" : num(value) < 100 ? num(value).toFixed(1) : count(num(value)));

function describe(e) {
  const reason = e.answer?.reasonCode;
  const head = el("p", { class: "verdict" }, reason ? el("span", { class: "badge " + (reason === "PREFIX_MATCH" ? "ok" : "idle") }, reason) : null, " ", e.summary || "");
  if (e.error) return [head, el("p", { class: "notice" }, e.error)];
  const about = el("p", { class: "muted small" },
    `${e.tenantId} / ${e.modelId} / ${e.hashScheme}${e.adapterId ? " / " + e.adapterId : ""}: prompt of ${count(num(e.promptTokens))} tokens in ${count(num(e.promptBlocks))} blocks; profile ${e.profile}; ` +
    `a miss costs ${percent(num(e.missPrice))} more; decided ${new Date(num(e.decidedAtUs) / 1000).toLocaleTimeString()}`);
  const changes = el("ul", {}, ...(e.wouldChange ?? []).map((text) => el("li", {}, text)));
  const considered = e.considered ?? [];
  if (considered.length === 0) return [head, about, hint("No replica was considered: nobody reported under these names. Compare them with the fleet above.")];
  return [head, changes.childElementCount ? changes : null, about, table(considered)].filter(Boolean);
}

const columns = [["Replica"], ["Holds", "n"], ["T1 + T2 + T3", "n"], ["Soon", "n"], ["Wait", "n"], ["Prefill", "n"], ["Miss", "n"], ["Load", "n"], ["Penalty", "n"], ["Gain", "n"], ["Finish", "n"], ["Where its run of blocks ends"]];

// table shows the candidates; times are in milliseconds.
function table(considered) {
  const heads = columns.map(([name, kind]) => el("th", { scope: "col", class: kind }, name));
  const body = el("tbody");
  const whole = el("table", { class: "stack" }, el("caption", { class: "muted small" }, "Tokens and milliseconds; the least finish is first."), el("thead", {}, el("tr", {}, ...heads)), body);
  syncRows(body, considered, (c) => c.replicaId, cellsOf, (c) => (c.named ? "named" : c.excluded ? "gone" : ""));
  return el("div", { class: "scroll", role: "region", "aria-label": "Replicas considered", tabindex: "0" }, whole);
}

function cellsOf(c) {
  const name = { text: c.replicaId, class: "name" };
  if (c.excluded) return [name, ...columns.slice(2).map(() => ""), endText(c)];
  return [
    name,
    count(num(c.heldTokens)),
    [c.t1Tokens, c.t2Tokens, c.t3Tokens].map((tokens) => count(num(tokens))).join(" + "),
    count(num(c.soonTokens)),
    c.loadKnown ? ms(c.backlogMs) : { text: ms(c.backlogMs) + " ?", title: "no load report is behind this" },
    ms(c.prefillMs), ms(c.missMs), ms(c.loadMs), ms(c.penaltyMs), ms(-num(c.gainMs)),
    { text: ms(c.finishMs), class: "strong" },
    endText(c),
  ];
}

function endText(c) {
  const notes = [];
  if (c.excluded) notes.push("no candidate: " + (c.excludedReason || "not known"));
  if (c.runEnd) notes.push(c.runDetail || c.runEnd);
  if (c.belowFloor) notes.push("below the floor of matched tokens");
  if (c.late) notes.push("too late for the wanted time to first token");
  if (c.overShare) notes.push("had more than its share of hints");
  if (c.suspect) notes.push("suspect");
  if (c.quarantined) notes.push(`not believed: ${percent(num(c.truth))} of what it promised was found`);
  return { text: notes.join("; "), class: "small" };
}
