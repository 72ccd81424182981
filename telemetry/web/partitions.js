"use strict";
// The status page of one sidecar, or of a fleet (`sidetier fleet serve`): both answer the same API.

const PAGE_ROWS = 100;
const FILTER_DELAY_MS = 250;

const STATES = {
  halted: { label: "halted", tone: "bad", runbook: "SidetierPartitionHalted" },
  near_deletion: { label: "near deletion", tone: "bad", runbook: "SidetierNearLocalDeletion" },
  held: { label: "held", tone: "warn", runbook: "SidetierUploadStalled" },
  quarantining: { label: "quarantining", tone: "warn", runbook: "SidetierQuarantined" },
  gap: { label: "gap", tone: "warn", runbook: "SidetierGapFound" },
  starting: { label: "starting", tone: "busy" },
  waiting: { label: "waiting", tone: "busy" },
  uploading: { label: "uploading", tone: "busy" },
  archived: { label: "archived", tone: "good" },
};
const CONDITION_RUNBOOKS = {
  "leadership known": "SidetierLeadershipUnknown",
  "store reachable": "SidetierStoreUnreachable",
};
const PARTS = {
  deleted: "deleted everywhere",
  store: "on the store only",
  both: "on the store and the broker",
  tail: "not archived, in tail packs and on the broker",
  broker: "on the broker only",
  gap: "gap: deleted before it was archived",
};
const DELETED_SHARE = 0.15; // the widest share of a bar for records that no longer exist

const view = { offset: 0, sort: "severity", topic: "", states: new Set(), expanded: new Set() };

// -- texts

const segments = (value) => `${count(value)} ${value === 1 ? "segment" : "segments"}`;
function deletion(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 0 ? `overdue by ${age(-seconds)}` : `in ${age(seconds)}`;
}

// -- the log of a partition

/** Return the parts of a log in offset order: kind, start (inclusive), end (exclusive). */
function logParts(row) {
  const stored = row.next_offset;
  const end = Math.max(row.log_end ?? 0, stored ?? 0, row.local_closed_end ?? 0);
  const local = row.trimmed_to ?? row.local_start ?? end;
  const first = stored === null ? 0 : row.archive_start ?? Math.min(local, stored);
  const safe = Math.min(row.safe_to ?? 0, end);
  const gaps = row.gaps || [];
  const bounds = new Set([0, end, local, first, safe, stored ?? 0, ...gaps.flat()]);
  const sorted = [...bounds].filter((bound) => bound >= 0 && bound <= end).sort((a, b) => a - b);
  const parts = [];
  for (let i = 0; i + 1 < sorted.length; i += 1) {
    const [start, stop] = [sorted[i], sorted[i + 1]];
    const kind = kindOf(start, { stored, local, first, safe, gaps });
    const last = parts[parts.length - 1];
    if (last && last.kind === kind) last.end = stop;
    else parts.push({ kind, start, end: stop });
  }
  return parts;
}

function kindOf(offset, { stored, local, first, safe, gaps }) {
  const unarchived = offset < safe ? "tail" : "broker";
  if (stored === null) return offset < local ? "deleted" : unarchived;
  if (offset < first) return offset < local ? "deleted" : "broker";
  if (gaps.some(([start, end]) => start <= offset && offset < end)) return "gap";
  if (offset < stored) return offset < local ? "store" : "both";
  return offset < local ? "gap" : unarchived;
}

function logText(parts) {
  if (!parts.length) return "The log is empty.";
  return parts.map((part) => `${count(part.start)} to ${count(part.end)}: ${PARTS[part.kind]}`).join("; ");
}

function fillLog(cell, row) {
  const parts = logParts(row);
  const text = logText(parts);
  const bar = cell.querySelector(".bar");
  if (bar.getAttribute("aria-label") !== text) {
    bar.setAttribute("aria-label", text);
    bar.title = text;
    const deleted = parts.filter((part) => part.kind === "deleted");
    const existing = parts.filter((part) => part.kind !== "deleted");
    const total = existing.reduce((sum, part) => sum + part.end - part.start, 0);
    const gone = deleted.reduce((sum, part) => sum + part.end - part.start, 0);
    const goneShare = total ? Math.min(DELETED_SHARE, gone / (gone + total)) : 1;
    bar.replaceChildren(
      ...parts.map((part) => {
        const drawn = element("span", { className: `part ${part.kind}` });
        const size = part.end - part.start;
        const share = part.kind === "deleted" ? (goneShare * size) / gone : ((1 - goneShare) * size) / total;
        drawn.style.flexGrow = String(share * 1000);
        return drawn;
      }),
    );
  }
  const end = parts.length ? parts[parts.length - 1].end : 0;
  const upTo = row.next_offset === null ? "nothing archived yet" : `archived up to ${count(row.next_offset)}`;
  const safe = row.safe_to === null || row.safe_to === undefined ? "" : `, safe up to ${count(row.safe_to)}`;
  const late = row.unsafe_age_seconds ? ` (waiting for ${age(row.unsafe_age_seconds)})` : "";
  setText(cell.querySelector("small"), `${upTo}${safe}${late}, log end ${count(end)}`);
}

// -- the table of partitions

/** Whether the sidecars of this fleet belong to several clusters: then nothing is added up over them. */
const severalClusters = () => (answer.fleet?.clusters?.length ?? 0) > 1;

const keyOf = (row) => `${row.sidecar ?? ""}|${row.topic}-${row.partition}`;

function newRow(key) {
  const name = element("button", { type: "button", "aria-expanded": "false" });
  name.addEventListener("click", () => {
    if (!view.expanded.delete(key)) view.expanded.add(key);
    render();
  });
  const log = element(
    "td",
    { className: "log" },
    element("div", { className: "bar", role: "img" }),
    element("small"),
  );
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, name, element("small")),
    element("td", {}, element("span", { className: "state" })),
    log,
    element("td", { className: "number" }),
    element("td", { className: "number" }),
    element("td", { className: "number" }),
    element("td", { className: "now" }),
  );
}

function fillRow(drawn, row) {
  const state = STATES[row.shown_state] ?? { label: row.shown_state, tone: "busy" };
  const [name, stateCell, log, unarchived, oldest, deleted, now] = drawn.children;
  const expanded = view.expanded.has(keyOf(row));
  setText(name.firstChild, `${row.topic}-${row.partition}`);
  setAttribute(name.firstChild, "aria-expanded", String(expanded));
  const broker = row.broker_id === undefined || row.broker_id === null ? "" : `broker ${row.broker_id}`;
  const where = [severalClusters() ? row.cluster : "", broker].filter(Boolean).join(" · ");
  const role = row.role === "follower" ? "follower, rescues segments at risk" : "";
  setText(name.lastChild, [where, role].filter(Boolean).join(", "));
  setText(stateCell.firstChild, state.label);
  setAttribute(stateCell.firstChild, "data-tone", state.tone);
  fillLog(log, row);
  const records = row.unarchived_records;
  if (records === null && !row.unstored_segments) put(unarchived, document.createTextNode("–"));
  else {
    put(
      unarchived,
      document.createTextNode(records === null ? bytes(row.unstored_bytes) : bytes(row.unarchived_bytes)),
      element("small", {
        text: records === null ? segments(row.unstored_segments) : `${count(records)} records`,
      }),
    );
  }
  setText(oldest, age(row.unarchived_age_seconds ?? row.oldest_unstored_age_seconds));
  const left = row.seconds_until_local_deletion;
  setText(deleted, deletion(left));
  setAttribute(deleted, "data-level", left === null ? null : left < 600 ? "bad" : left < 3600 ? "warn" : null);
  put(now, ...nowOf(row, state));
}

function nowOf(row, state) {
  const shown = [];
  const uploading = row.segments.filter((segment) => segment.stage === "uploading");
  for (const segment of uploading.slice(0, 2)) {
    const text = uploadText(segment);
    shown.push(element("small", { text }));
    if (isSending(segment)) {
      shown.push(element("progress", { max: segment.size_bytes, value: segment.sent_bytes, "aria-label": text }));
    }
  }
  if (uploading.length && !uploading.some((segment) => segment.send_bytes_per_second)) {
    const rate = row.last_upload_bytes_per_second;
    if (rate !== null) shown.push(element("small", { text: `last upload at ${bytes(rate)}/s` }));
  }
  const problem = problemText(row);
  if (problem) shown.unshift(element("span", { className: "text", title: problem, text: problem }));
  if (state.runbook) shown.push(runbook(row.unresolved_quarantines && row.shown_state === "gap" && !gapRecords(row) ? "SidetierQuarantined" : state.runbook));
  return shown;
}

/** Whether the upload has begun to send the segment. Before that it verifies the segment. */
const isSending = (segment) => segment.sent_bytes !== null && segment.sent_bytes !== undefined;

function uploadText(segment) {
  const name = `segment ${count(segment.base_offset)}`;
  if (isSending(segment)) {
    const rate = segment.send_bytes_per_second;
    const left = segment.send_seconds_left;
    const speed = rate === null ? "" : ` at ${bytes(rate)}/s, ${age(left)} left`;
    return `uploading ${name}: ${bytes(segment.sent_bytes)} of ${bytes(segment.size_bytes)}${speed}`;
  }
  const since = segment.upload_started_ms === null ? "" : `, for ${age((serverNow() - segment.upload_started_ms) / 1000)}`;
  // A sidecar of an earlier version, in a fleet, does not tell what is sent.
  const verb = segment.sent_bytes === null ? "verifying" : "uploading";
  return `${verb} ${name}, ${bytes(segment.size_bytes)}${since}`;
}

const gapRecords = (row) => row.unresolved_gap_records ?? row.gap_records;

function problemText(row) {
  const parts = [];
  if (gapRecords(row)) parts.push(`${count(gapRecords(row))} records were deleted before they were archived`);
  if (row.unresolved_quarantines) parts.push(`${count(row.unresolved_quarantines)} quarantines are not acknowledged`);
  const waiting = row.waiting_for ?? "";
  const error = row.last_error ?? "";
  // One of the two often repeats the other.
  if (waiting && row.shown_state !== "uploading" && !error.includes(waiting)) parts.push(waiting);
  if (error && !waiting.includes(error)) parts.push(`last error: ${error}`);
  return parts.join("; ");
}

function detailsOf(row) {
  const lines = [
    logText(logParts(row)),
    `leader epoch ${row.leader_epoch}; oldest local segment ${row.local_start ?? "–"}${(row.trimmed_to ?? null) === null ? "" : ` (those below ${row.trimmed_to} are deleted by the broker at its next check)`}; closed segments end at ${row.local_closed_end ?? "–"}`,
    `${count(row.unstored_segments)} closed segments with ${bytes(row.unstored_bytes)} are not archived`,
    row.last_upload_ms === null ? "no upload since the start" : `last upload at ${clock(row.last_upload_ms)}`,
  ];
  if (row.retry_at_ms !== null) lines.push(`next try at ${clock(row.retry_at_ms)}`);
  if (row.last_error) lines.push(`last error: ${row.last_error}`);
  for (const segment of row.segments) {
    const error = segment.error === null ? "" : `, ${segment.error}`;
    const flags = `${segment.pinned ? ", pinned" : ""}${segment.marked_for_deletion ? ", deleted by the broker" : ""}`;
    lines.push(`segment ${count(segment.base_offset)}: ${segment.stage}, ${bytes(segment.size_bytes)}${flags}${error}`);
  }
  const list = element("ul", {}, ...lines.map((line) => element("li", { text: line })));
  return element("td", { colspan: "7" }, list);
}

/** Update the rows in place. A row keeps its elements, and with them focus, while it is on the page. */
function renderRows() {
  const body = byId("rows");
  const focused = document.activeElement;
  const kept = new Map([...body.children].map((child) => [child.dataset.key, child]));
  const wanted = [];
  for (const row of answer.partitions) {
    const key = keyOf(row);
    const drawn = kept.get(key) ?? newRow(key);
    drawn.dataset.key = key;
    fillRow(drawn, row);
    wanted.push(drawn);
    if (view.expanded.has(key)) {
      const detailsKey = `${key}|details`;
      const details = kept.get(detailsKey) ?? element("tr", { className: "details" });
      details.dataset.key = detailsKey;
      put(details, detailsOf(row));
      wanted.push(details);
    }
  }
  const isSame = wanted.length === body.children.length && wanted.every((child, i) => child === body.children[i]);
  if (!isSame) {
    body.replaceChildren(...wanted);
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }
}

// -- the rest of the page

function problems() {
  const found = [];
  const add = (text, runbookPage) => found.push([text, runbookPage]);
  if (answer.death) add(`a thread of the sidecar has died: ${answer.death}`, "SidetierRestarting");
  found.push(...failedConditions(CONDITION_RUNBOOKS, "SidetierNotReady"));
  for (const text of answer.log_dir_problems || []) add(text, "SidetierLogDirProblem");
  for (const text of answer.warnings || []) add(text, null);
  for (const error of answer.held_errors || []) {
    add(`${error.subject}: ${error.error} (${count(error.failures)} times in a row)`, "SidetierUploadStalled");
  }
  if (answer.hung_requests) add(`${count(answer.hung_requests)} requests to the store hang`, "SidetierStoreUnreachable");
  for (const snapshot of answer.cluster_snapshots || []) {
    if (snapshot.problem) add(`cluster snapshot of ${snapshot.kind}: ${snapshot.problem}`, "SidetierClusterSnapshotOld");
  }
  const drill = answer.last_drill;
  if (drill && !drill.succeeded) add(`the last restore drill failed: ${drill.problem ?? "no reason recorded"}`, "SidetierDrillOld");
  for (const sidecar of answer.fleet?.sidecars ?? []) {
    if (!sidecar.reachable) add(`${sidecar.address}: ${sidecar.reason}`, "SidetierDown");
    else if (!sidecar.ready) add(`${sidecar.address} is not ready: ${sidecar.reason}`, "SidetierNotReady");
  }
  for (const text of answer.fleet?.problems ?? []) add(text, null);
  return found;
}

function renderSidecarHeader() {
  const fleet = answer.fleet;
  const broker = answer.broker_id === null || answer.broker_id === undefined ? "" : `broker ${answer.broker_id}`;
  const ready = fleet ? fleet.sidecars.filter((sidecar) => sidecar.reachable && sidecar.ready).length : 0;
  renderHeader({
    parts: [answer.cluster, broker],
    about: fleet ? `, ${fleet.sidecars.length} sidecars` : "",
    badge: fleet ? `${answer.ready ? "✓" : "✕"} ${ready} of ${fleet.sidecars.length} ready` : null,
    problems: problems(),
  });
}

/** What one of several clusters has; the totals of the page are those of one cluster. */
function clusterTotals({ cluster, totals, uploading_segments: uploading }) {
  const small = `${count(totals.unarchived_records)} records, the oldest ${age(totals.oldest_age_seconds)}; ${segments(uploading)} uploading`;
  return total(`${cluster}: only on the brokers`, bytes(totals.unarchived_bytes), small);
}

function renderTotals() {
  if (severalClusters()) {
    put(byId("totals"), ...answer.fleet.clusters.map(clusterTotals));
    return;
  }
  const totals = answer.totals;
  const left = totals.seconds_until_local_deletion;
  const uploadRate = rate("uploaded");
  put(
    byId("totals"),
    total("Only on the brokers", bytes(totals.unarchived_bytes), `${count(totals.unarchived_records)} records`),
    total("Oldest record not archived", age(totals.oldest_age_seconds), "since it was appended"),
    total("First local deletion", deletion(left), left === null ? "the broker deletes nothing that is not archived" : "of records not archived", left === null ? null : left < 600 ? "bad" : left < 3600 ? "warn" : null),
    total("Uploading", segments(answer.uploading_segments), uploadRate === null ? "rate: measuring" : `${bytes(uploadRate)}/s in the last minute`),
    total("Queue", segments(answer.queued_segments), bytes(answer.queued_bytes)),
    total("Held on the broker's disk", bytes(answer.pinned_deleted_bytes), "deleted, pinned until archived"),
  );
}

function renderFilters() {
  const group = byId("states");
  if (!group.children.length) {
    for (const [state, { label, tone }] of Object.entries(STATES)) {
      const button = element("button", { type: "button", "data-state": state, "data-tone": tone });
      button.dataset.label = label;
      button.addEventListener("click", () => {
        if (!view.states.delete(state)) view.states.add(state);
        show({ offset: 0 });
      });
      group.append(button);
    }
  }
  for (const button of group.children) {
    const totals = answer?.totals;
    const number = totals?.states[button.dataset.state] ?? 0;
    setText(button, totals === null ? button.dataset.label : `${count(number)} ${button.dataset.label}`);
    setAttribute(button, "aria-pressed", String(view.states.has(button.dataset.state)));
    setAttribute(button, "data-none", number || totals === null ? null : "");
  }
  for (const header of document.querySelectorAll("th[data-sort]")) {
    const order = header.dataset.sort === "bytes" || header.dataset.sort === "age" ? "descending" : "ascending";
    setAttribute(header, "aria-sort", header.dataset.sort === view.sort ? order : null);
  }
}

function renderFleet() {
  const fleet = answer.fleet;
  byId("fleet").hidden = !fleet;
  if (!fleet) return;
  put(
    byId("sidecars"),
    ...fleet.sidecars.map((sidecar) => {
      const level = sidecar.reachable ? (sidecar.ready ? "good" : "bad") : "bad";
      const state = sidecar.reachable ? (sidecar.ready ? "ready" : "not ready") : "unreachable";
      const text = (value) => element("td", { className: "number", text: value });
      return element(
        "tr",
        {},
        element("th", { scope: "row", text: sidecar.address }),
        element("td", {}, element("span", { className: "state", "data-tone": level, text: state })),
        element("td", { text: sidecar.cluster ?? "–" }),
        text(sidecar.broker_id ?? "–"),
        element("td", { text: sidecar.version ?? "–" }),
        text(sidecar.reachable ? count(sidecar.totals.partitions) : "–"),
        text(sidecar.reachable ? bytes(sidecar.totals.unarchived_bytes) : "–"),
        text(sidecar.reachable ? age(sidecar.totals.oldest_age_seconds) : "–"),
        element("td", { text: sidecar.reason || sidecar.worst || "" }),
      );
    }),
  );
}

function renderPages() {
  const { offset, matching } = answer.page;
  const last = offset + answer.partitions.length;
  byId("none").hidden = matching > 0;
  setText(byId("none"), answer.totals?.partitions || view.topic || view.states.size ? "No partition matches the filter." : "This broker leads no archived partition.");
  byId("pages").hidden = matching <= PAGE_ROWS && offset === 0;
  setText(byId("range"), matching ? `${count(Math.min(offset + 1, matching))} to ${count(last)} of ${count(matching)}` : "");
  byId("previous").disabled = offset === 0;
  // A fleet's pages end after `reachable` partitions.
  byId("next").disabled = last >= Math.min(matching, answer.page.reachable ?? matching);
}

function renderPartitions() {
  renderFilters();
  if (answer === null) return;
  renderSidecarHeader();
  renderTotals();
  renderFleet();
  renderRows();
  renderPages();
}

// -- requests

function address() {
  const query = new URLSearchParams({ offset: view.offset, limit: PAGE_ROWS, sort: view.sort });
  if (view.topic) query.set("topic", view.topic.includes("*") ? view.topic : `*${view.topic}*`);
  if (view.states.size) query.set("state", [...view.states].join(","));
  return `api/partitions?${query}`;
}

const reachable = (body) => body.fleet?.sidecars.filter((sidecar) => sidecar.reachable).length;

/** Go to the last page if this one no longer exists: partitions have gone, or the filter leaves fewer. */
function leaveMissingPage() {
  const { matching } = answer.page;
  if (view.offset && view.offset >= matching) {
    view.offset = Math.max(0, Math.floor((matching - 1) / PAGE_ROWS) * PAGE_ROWS);
    queueMicrotask(refresh);
  }
}

/** Change the view, keep it in the address of the page, and load it. */
function show(changes) {
  Object.assign(view, changes);
  const query = new URLSearchParams();
  if (view.topic) query.set("topic", view.topic);
  if (view.sort !== "severity") query.set("sort", view.sort);
  if (view.states.size) query.set("state", [...view.states].join(","));
  history.replaceState(null, "", `${location.pathname}${query.size ? `#${query}` : ""}`);
  renderFilters();
  refresh();
}

function restoreView() {
  const query = new URLSearchParams(location.hash.slice(1));
  view.topic = query.get("topic") ?? "";
  byId("topic").value = view.topic;
  const orders = [...document.querySelectorAll("th[data-sort]")].map((header) => header.dataset.sort);
  if (orders.includes(query.get("sort"))) view.sort = query.get("sort");
  for (const state of (query.get("state") ?? "").split(",")) if (state in STATES) view.states.add(state);
}

function listen() {
  let delay = null;
  byId("topic").addEventListener("input", (event) => {
    clearTimeout(delay);
    delay = setTimeout(() => show({ topic: event.target.value.trim(), offset: 0 }), FILTER_DELAY_MS);
  });
  for (const header of document.querySelectorAll("th[data-sort]")) {
    header.firstElementChild.addEventListener("click", () => show({ sort: header.dataset.sort, offset: 0 }));
  }
  byId("previous").addEventListener("click", () => show({ offset: Math.max(0, view.offset - PAGE_ROWS) }));
  byId("next").addEventListener("click", () => show({ offset: view.offset + PAGE_ROWS }));
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      byId("topic").focus();
    } else if (event.key === "Escape" && event.target === byId("topic")) {
      byId("topic").value = "";
      show({ topic: "", offset: 0 });
    }
  });
}

restoreView();
listen();
renderFilters();
startPage({
  address,
  counters: (body) => ({ uploaded: body.uploaded_bytes + (body.sending_bytes ?? 0) }),
  isRestarted: (before, now) =>
    now.uploaded_bytes < before.uploaded_bytes || reachable(before) !== reachable(now),
  take: leaveMissingPage,
  render: renderPartitions,
});
