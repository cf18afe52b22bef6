// Elements, numbers and tables. Text only ever becomes text nodes: no string
// that the server sends is read as markup.

export const $ = (id) => document.getElementById(id);

// el makes an element; attributes that are null, undefined or false are left out.
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// setText leaves the node alone if nothing changes, so that selections last.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// num reads a number of the wire: absent is 0, 64 bits come as text.
export const num = (value) => Number(value ?? 0);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n) => (Math.abs(n) < 100000 ? whole.format(n) : short.format(n));

export const rate = (n) => (n === 0 ? "0" : n < 0.1 ? "<0.1" : n < 10 ? n.toFixed(1) : count(n));

export const percent = (share) => (share > 0 && share < 0.01 ? "<1 %" : Math.round(share * 100) + " %");

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return (i === 0 || n >= 100 ? n.toFixed(0) : n.toFixed(1)) + " " + units[i];
}

// span is a time in words of few letters.
export function span(ms) {
  if (ms < 950) return Math.round(ms) + " ms";
  const s = ms / 1000;
  if (s < 10) return s.toFixed(1) + " s";
  if (s < 120) return Math.round(s) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}

// ago is an age of the wire; -1 is never.
export function ago(ms) {
  if (ms < 0) return "never";
  return ms < 1000 ? "now" : span(Math.floor(ms / 1000) * 1000);
}

// dash stands for what is not known.
export const dash = () => ({ text: "–", class: "muted", title: "not known" });

// syncRows makes the rows of a body those of items and touches only the cells
// that differ: a reader's place in the table stays. A cell is a text, a part
// {text, class, title}, or a list of parts.
export function syncRows(body, items, keyOf, cellsOf, classOf = () => "") {
  const heads = [...body.parentElement.tHead.rows[0].cells];
  const old = new Map([...body.rows].map((row) => [row.key, row]));
  let place = body.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let row = old.get(key);
    old.delete(key);
    if (!row) row = newRow(key, heads);
    const kind = classOf(item);
    if (row.className !== kind) row.className = kind;
    cellsOf(item).forEach((cell, i) => setCell(row.cells[i], cell));
    if (row === place) place = place.nextElementSibling;
    else body.insertBefore(row, place);
  }
  for (const row of old.values()) row.remove();
}

// The roles are said again because narrow screens lay the table out as blocks,
// where browsers forget them.
function newRow(key, heads) {
  const row = el("tr", { role: "row" });
  row.key = key;
  heads.forEach((head, i) => {
    const cell = i === 0 ? el("th", { scope: "row", role: "rowheader" }) : el("td", { role: "cell" });
    if (head.classList.contains("n")) cell.className = "n";
    cell.dataset.label = head.textContent;
    row.append(cell);
  });
  return row;
}

function setCell(cell, content) {
  const parts = Array.isArray(content) ? content : [content];
  const signature = JSON.stringify(parts);
  if (cell.signature === signature) return;
  cell.signature = signature;
  const value = el("span", { class: "v" });
  for (const part of parts) {
    if (typeof part === "string") value.append(part);
    else value.append(el("span", { class: part.class, title: part.title }, part.text));
  }
  cell.replaceChildren(value);
}

export function hint(...children) {
  return el("p", {}, ...children);
}

export const code = (text) => el("code", {}, text);
