// The status page: asks GetFleet every two seconds, follows the events, and says
// so when the server is away. The fleet is polled rather than streamed: an
// answer is whole by itself, whatever was missed before it.

import { $, el, setText, hint, code } from "./dom.js";
import { call } from "./rpc.js";
import { sample, draw } from "./charts.js";
import { showFleet, showReplicas, mostRows } from "./fleet.js";
import { follow, hush, paint, startEvents } from "./events.js";
import { startExplain } from "./explain.js";

const everyMs = 2000;
const patienceMs = 8000; // for one answer
const mostPauseMs = 15000;

let paused = false;
let failures = 0; // in a row
let since = null; // of the first of them
let timer = 0;

async function poll() {
  const limit = AbortSignal.timeout(patienceMs);
  try {
    const fleet = await call("GetFleet", { maxReplicas: mostRows }, limit);
    failures = 0;
    sample(fleet);
    draw();
    showFleet(fleet);
    showLink("live", "ok");
    $("away").hidden = true;
  } catch (error) {
    showAway(limit.aborted ? new Error(`no answer within ${patienceMs / 1000} s`) : error);
  }
  schedule(Math.min(mostPauseMs, everyMs * 2 ** Math.min(failures, 3)));
}

function schedule(ms) {
  clearTimeout(timer);
  if (!paused && !document.hidden) timer = setTimeout(poll, ms);
}

// showLink is a live region: it changes only when the state does.
function showLink(text, kind) {
  setText($("link"), text);
  $("link").className = "badge " + kind;
}

function showAway(error) {
  if (failures++ === 0) since = new Date();
  const away = $("away");
  away.hidden = false;
  away.replaceChildren(
    el("p", { class: "strong" }, `The server does not answer since ${since.toLocaleTimeString()}. What you see is from before.`),
    hint(`${error.message}. It is asked again every few seconds.`),
    hint("Does it run, and does ", code(new URL("healthz", document.baseURI).href), " say ok? A port-forward ends with its pod: start it again, for instance ", code("kubectl -n NAMESPACE port-forward service/inference-cache-server 9090"), "."));
  showLink("away", "bad");
}

// turn starts or stops all that moves.
function turn(on) {
  if (on) {
    follow();
    schedule(0);
  } else {
    hush();
    clearTimeout(timer);
  }
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  setText($("pause"), paused ? "Resume" : "Pause");
  if (paused) showLink("paused", "idle");
  turn(!paused);
});
document.addEventListener("visibilitychange", () => turn(!paused && !document.hidden));
$("fleet-find").addEventListener("input", showReplicas);

startEvents();
startExplain();
draw();
turn(true);
setInterval(paint, 1000);
