"use strict";
// What all status pages share: texts, elements, header, login and refresh. The script of a page,
// partitions.js or endpoint.js, calls `startPage` with what it shows.
// Every text from the server is set by textContent, so it can never become HTML.

const REFRESH_MS = 5000;
const TIMEOUT_MS = 15000;
const RATE_WINDOW_MS = 60000;
const MAX_PROBLEMS = 50;

const byId = (id) => document.getElementById(id);
let page = null;
let token = sessionStorage.getItem("sidetier-token") || "";
let answer = null;
let answeredAt = null;
let serverTime = null;
let staleReason = null;
let samples = [];
let timer = null;
let request = null;

// -- texts

const count = (value) => value.toLocaleString("en-US");

function bytes(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1000) return `${value} B`;
  const units = ["kB", "MB", "GB", "TB", "PB"];
  let scaled = value;
  let unit = -1;
  do {
    scaled /= 1000;
    unit += 1;
  } while (scaled >= 999.5 && unit < units.length - 1);
  return `${scaled < 10 ? scaled.toFixed(1) : scaled.toFixed(0)} ${units[unit]}`;
}

function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

// -- elements

function element(tag, { text, ...attributes } = {}, ...children) {
  const created = document.createElement(tag);
  if (text !== undefined && text !== null) created.textContent = text;
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) {
      created.setAttribute(name === "className" ? "class" : name, value === true ? "" : value);
    }
  }
  created.append(...children.filter((child) => child !== null));
  return created;
}

/** Replace the children only if something changes, so that focus and selection stay. */
function put(parent, ...children) {
  const wanted = children.filter((child) => child !== null);
  const same =
    wanted.length === parent.childNodes.length &&
    wanted.every((child, i) => child.isEqualNode(parent.childNodes[i]));
  if (!same) parent.replaceChildren(...wanted);
}

function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function setAttribute(target, name, value) {
  if (value === null || value === undefined) target.removeAttribute(name);
  else if (target.getAttribute(name) !== value) target.setAttribute(name, value);
}

/** A link to the runbook page, or its name where `http.runbook_url` is not set. */
function runbook(name) {
  if (!name) return null;
  const base = answer.runbook_url || "";
  if (!/^https?:\/\//.test(base)) return element("small", { text: `Runbook: docs/runbook/${name}.md` });
  const href = `${base}/${encodeURIComponent(name)}.md`;
  return element("a", { href, target: "_blank", rel: "noopener noreferrer", text: `What to do: ${name}` });
}

// -- the parts that all pages have

/**
 * Show readiness, and what needs attention.
 *
 * `parts` are the parts of the heading, and `about` follows the uptime. `badge` replaces the text of
 * readiness. Each problem is a text and the name of its runbook page, or null.
 */
function renderHeader({ parts, about, badge, problems }) {
  const name = parts.filter(Boolean).join(" · ");
  setText(byId("cluster"), name || "Sidetier");
  document.title = `${answer.ready ? "" : "NOT READY · "}${name} · Sidetier`;
  const uptime = answer.started_ms ? `, up ${age((serverNow() - answer.started_ms) / 1000)}` : "";
  setText(byId("about"), `Sidetier ${answer.version}${uptime}${about}`);
  setText(byId("ready"), badge ?? (answer.ready ? "✓ Ready" : "✕ Not ready"));
  setAttribute(byId("ready"), "data-level", answer.ready ? "good" : "bad");
  const conditions = (answer.conditions || []).map(({ name: condition, holds }) => `${holds ? "✓" : "✕"} ${condition}`);
  setText(byId("conditions"), conditions.join("   "));
  byId("problems").hidden = !problems.length;
  put(
    byId("problem-list"),
    ...problems.slice(0, MAX_PROBLEMS).map(([text, runbookPage]) =>
      element("li", { className: "problem" }, element("span", { text: `${text} ` }), runbook(runbookPage)),
    ),
  );
}

/** The conditions that do not hold, as problems. */
function failedConditions(runbooks, otherwise) {
  const failed = (answer.conditions || []).filter(({ holds }) => !holds);
  return failed.map(({ name, reason }) => [`${name}: ${reason}`, runbooks[name] ?? otherwise]);
}

function total(name, value, small, level) {
  return element("div", {}, element("dt", { text: name }), element("dd", { "data-level": level, text: value }, element("small", { text: small })));
}

/** A cell with a state, which has a text and a colour. */
function stateCell(label, tone) {
  return element("td", {}, element("span", { className: "state", "data-tone": tone, text: label }));
}

/** A cell with a number, right-aligned. */
function numberCell(text) {
  return element("td", { className: "number", text });
}

function renderAge() {
  const stale = staleReason !== null;
  document.body.classList.toggle("stale", stale && answer !== null);
  byId("stale").hidden = !stale;
  if (stale) {
    setText(
      byId("stale"),
      answeredAt === null ? `No status yet: ${staleReason}` : `Stale since ${clock(answeredAt)}: ${staleReason}`,
    );
  }
  setText(byId("updated"), answeredAt === null ? "" : `updated at ${clock(answeredAt)}`);
}

function render() {
  renderAge();
  page.render();
}

// -- requests

/** The server's time in ms: the clock of the browser may be wrong. */
const serverNow = () => serverTime ?? Date.now();

async function refresh() {
  clearTimeout(timer);
  request?.abort();
  const mine = new AbortController();
  request = mine;
  const timeout = setTimeout(() => mine.abort("timeout"), TIMEOUT_MS);
  try {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const response = await fetch(page.address(), { headers, signal: mine.signal, cache: "no-store" });
    if (mine !== request) return;
    byId("login").hidden = response.status !== 401;
    if (response.status === 401) throw new Error("the server asks for a bearer token");
    const body = await response.json();
    if (!response.ok) throw new Error(body.error ?? `the server answers ${response.status}`);
    if (mine !== request) return;
    serverTime = Date.parse(response.headers.get("Date")) || null;
    take(body);
    staleReason = null;
  } catch (error) {
    if (mine !== request) return;
    if (mine.signal.aborted) staleReason = `no answer within ${TIMEOUT_MS / 1000} s`;
    else staleReason = error instanceof TypeError ? "the server does not answer" : error.message;
  } finally {
    clearTimeout(timeout);
    if (mine === request) {
      request = null;
      // First: an answer that cannot be shown must not be the last one.
      if (document.visibilityState === "visible") timer = setTimeout(refresh, REFRESH_MS);
      render();
    }
  }
}

function take(body) {
  const restarted =
    answer !== null && (answer.started_ms !== body.started_ms || page.isRestarted(answer, body));
  answer = body;
  answeredAt = Date.now();
  if (restarted) samples = [];
  samples = samples.filter((sample) => answeredAt - sample.at <= RATE_WINDOW_MS);
  samples.push({ at: answeredAt, counters: page.counters(body) });
  page.take?.();
}

/** Growth of a counter per second in the past minute; null for one sample. */
function rate(counter) {
  const [first, last] = [samples[0], samples[samples.length - 1]];
  if (!first || last.at - first.at < 1000) return null;
  const grown = last.counters[counter] - first.counters[counter];
  return Math.max(0, Math.round((grown * 1000) / (last.at - first.at)));
}

/**
 * Show a page, and keep it up to date.
 *
 * `address` returns the path of its API, and `counters` the values of an answer that `rate` knows.
 * `isRestarted` returns whether the counters have begun again between two answers, `take` is called
 * after an answer, and `render` shows `answer`, which is null before the first one.
 */
function startPage(kind) {
  page = kind;
  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    token = byId("token").value;
    sessionStorage.setItem("sidetier-token", token);
    refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") refresh();
    else clearTimeout(timer);
  });
  refresh();
}
