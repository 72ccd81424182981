"use strict";
// The status page of a Kafka endpoint (`sidetier serve`).

const LATE_LIST_SECONDS = 60; // both lists of topics are renewed more often

const perSecond = (value, unit) => (value === null ? "rate: measuring" : `${unit(value)}/s in the last minute`);
/** Those from brokers are counted a moment before all of them. */
const storeBytes = (body) => Math.max(0, body.record_bytes - (body.live?.record_bytes ?? 0));
const partitionsText = (number) => `${count(number)} ${number === 1 ? "partition" : "partitions"}`;

function endpointProblems() {
  const found = [];
  if (answer.death) found.push([`the endpoint does not work: ${answer.death}`, "SidetierServeDown"]);
  found.push(...failedConditions({ "accepts connections": "SidetierServeRefusing" }, "SidetierServeDown"));
  for (const { url, problem } of answer.stores) {
    if (problem) found.push([`the topics of ${url} cannot be listed: ${problem}`, "SidetierServeErrors"]);
  }
  const live = answer.live;
  if (live === null) return found;
  const away = "SidetierServeLiveAway";
  if (live.topics_age_seconds === null) found.push(["no broker of the live cluster has answered yet", away]);
  else if (live.topics_age_seconds > LATE_LIST_SECONDS) {
    found.push([`no broker of the live cluster has answered for ${age(live.topics_age_seconds)}`, away]);
  }
  for (const { id, address, problem } of live.brokers) {
    if (problem) found.push([`broker ${id} (${address}) cannot be reached: ${problem}`, away]);
  }
  if (live.leaderless_partitions) {
    found.push([`${partitionsText(live.leaderless_partitions)} of the live cluster without a leader`, away]);
  }
  if (!live.archive_is_checked) {
    found.push(["it is not known yet whether the archive is the one of the live cluster", null]);
  }
  if (live.gaps) {
    const reads = live.gaps === 1 ? "1 Fetch" : `${count(live.gaps)} Fetches`;
    const text = `${reads} since the start for records that the broker has deleted and the archive lacks`;
    found.push([text, "SidetierServeGap"]);
  }
  return found;
}

function renderEndpointTotals() {
  const live = answer.live;
  const refused = answer.refused_connections ? `; ${count(answer.refused_connections)} refused since the start` : "";
  const shown = [
    total("Open connections", count(answer.connections), `of ${count(answer.max_connections)}${refused}`, answer.ready ? null : "bad"),
    total("Topics", count(answer.topics), partitionsText(answer.partitions)),
    total("Requests", count(answer.requests), perSecond(rate("requests"), count)),
    total("Records from the stores", bytes(storeBytes(answer)), perSecond(rate("store"), bytes)),
  ];
  if (live !== null) {
    shown.push(
      total("Records from the brokers", bytes(live.record_bytes), perSecond(rate("live"), bytes)),
      total("Sent by the brokers", bytes(live.fetched_bytes), "clients that read the same share it"),
      total("Largest lag", `${count(live.lag_records)} ${live.lag_records === 1 ? "record" : "records"}`, `of ${count(live.followed_partitions)} followed partitions`),
    );
  }
  put(byId("totals"), ...shown);
}

function storeRow({ url, topics, age_seconds: seconds, problem }) {
  const [label, tone] = problem ? ["fails", "bad"] : topics === null ? ["not listed yet", "busy"] : ["listed", "good"];
  return element(
    "tr",
    {},
    element("th", { scope: "row", text: url }),
    stateCell(label, tone),
    numberCell(topics === null ? "–" : count(topics)),
    numberCell(age(seconds)),
    element("td", { text: problem ?? "" }),
  );
}

function brokerRow({ id, address, led_partitions: led, problem }) {
  return element(
    "tr",
    {},
    element("th", { scope: "row", text: String(id) }),
    stateCell(problem ? "unreachable" : "no failure", problem ? "bad" : "good"),
    element("td", { text: address }),
    numberCell(count(led)),
    element("td", { text: problem ?? "" }),
  );
}

function followedRow({ topic, partition, isolation_level: isolation, leader, position, end, lag_records: lag }) {
  return element(
    "tr",
    {},
    element("th", { scope: "row", text: `${topic}-${partition}` }),
    element("td", { text: isolation }),
    numberCell(leader === -1 ? "none" : String(leader)),
    numberCell(count(position)),
    numberCell(count(end)),
    numberCell(count(lag)),
  );
}

function renderLive() {
  const live = answer.live;
  byId("live").hidden = live === null;
  byId("followed").hidden = !live?.followed.length;
  if (live === null) return;
  const lists = `list of topics ${live.topics_age_seconds === null ? "not known yet" : `${age(live.topics_age_seconds)} old`}`;
  setText(byId("live-about"), `Cluster ${live.cluster_id ?? "not known yet"}, ${count(live.topics)} topics, ${lists}`);
  put(byId("brokers"), ...live.brokers.map(brokerRow));
  setText(
    byId("followed-about"),
    `Partitions whose end is read for waiting clients, the largest lag first: ${count(live.followed.length)} of ${count(live.followed_partitions)}`,
  );
  put(byId("ends"), ...live.followed.map(followedRow));
}

function renderEndpoint() {
  if (answer === null) return;
  const { address, advertised } = answer;
  renderHeader({
    parts: [answer.cluster, `endpoint ${advertised}`],
    about: address === advertised ? "" : `, listens at ${address}`,
    problems: endpointProblems(),
  });
  renderEndpointTotals();
  put(byId("stores"), ...answer.stores.map(storeRow));
  renderLive();
}

startPage({
  address: () => "api/status",
  counters: (body) => ({
    requests: body.requests,
    store: storeBytes(body),
    live: body.live?.record_bytes ?? 0,
  }),
  isRestarted: (before, now) => now.requests < before.requests,
  render: renderEndpoint,
});
