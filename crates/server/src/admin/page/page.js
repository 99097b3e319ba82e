// The live page: fetches /api/status once a second and draws it. Text from the server is only ever
// set as text, never as markup.
"use strict";

const PERIOD_MS = 1000;
// The day's history has a new point once a minute.
const DAY_PERIOD_MS = 20000;
const CLUSTER_PERIOD_MS = 2000;
const byId = (id) => document.getElementById(id);
const svg = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);

// ---- formatting of numbers

function short(number) {
  if (number === null || !Number.isFinite(number)) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (number >= size) return (number / (unit === "k" ? 1e3 : size)).toPrecision(3) + " " + unit;
  }
  return String(number >= 100 ? Math.round(number) : Math.round(number * 10) / 10);
}

function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < 4) { number /= 1024; unit += 1; }
  const digits = unit === 0 || number >= 100 ? 0 : 1;
  return number.toFixed(digits) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][unit];
}

function duration(microseconds) {
  if (microseconds === null) return "–";
  if (microseconds < 1000) return Math.round(microseconds) + " µs";
  if (microseconds < 1e6) return (microseconds / 1000).toFixed(1) + " ms";
  return (microseconds / 1e6).toFixed(1) + " s";
}

function percent(share, digits = 1) {
  return share === null ? "–" : (100 * share).toFixed(digits) + " %";
}

function since(seconds) {
  const days = Math.floor(seconds / 86400);
  const hours = Math.floor(seconds / 3600) % 24;
  const minutes = Math.floor(seconds / 60) % 60;
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min` : `${seconds} s`;
}

// ---- charts of the last minutes or the last day

const charts = [
  { id: "throughput", title: "Requests a second by kind", area: true, text: short,
    lines: [{ column: "commands_per_second", name: "all" },
            { column: "gets_per_second", name: "get" },
            { column: "sets_per_second", name: "set" },
            { column: "others_per_second", name: "other" }] },
  { id: "latency", title: "Latency", isLogarithmic: true, text: duration,
    lines: [{ column: "p50_us", name: "median" }, { column: "p99_us", name: "99 %" }] },
  { id: "ratio", title: "Hit ratio", most: 1, area: true, text: (x) => percent(x, 0),
    lines: [{ column: "hit_ratio", name: "hit ratio of gets" }] },
  { id: "network", title: "Network", base: 2, least: 1024,
    text: (x) => x === null ? "–" : bytes(x) + "/s",
    lines: [{ column: "sent_bytes_per_second", name: "sent" },
            { column: "received_bytes_per_second", name: "received" }] },
  { id: "evicting", title: "Evictions a second", area: true, text: short,
    lines: [{ column: "evictions_per_second", name: "evictions a second" }] },
  { id: "processor", title: "Processor", least: 0.1, area: true, text: (x) => percent(x, 0),
    lines: [{ column: "cpu_cores", name: "of one core" }] },
  { id: "clients", title: "Connections", area: true, text: short,
    lines: [{ column: "connections", name: "open" }] },
];

// The ranges that the charts can show, with the labels of the time axis in points before the end.
const ranges = {
  minutes: { marks: [1, 2, 3, 4, 5].map((minutes) => [60 * minutes, `−${minutes} min`]) },
  day: { marks: [6, 12, 18, 24].map((hours) => [60 * hours, `−${hours} h`]) },
};
let range = "minutes";

// The smallest round number that is at least `number`.
function roundUp(number, base) {
  if (!(number > 0)) return 1;
  if (base === 2) return 2 ** Math.ceil(Math.log2(number));
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= number * 0.999);
}

// A function from a value to its height between the bottom (0) and the top (1) of the chart, and
// the values of the labelled grid lines.
function scaleOf(chart, known) {
  const largest = known.reduce((a, b) => Math.max(a, b), 0);
  if (!chart.isLogarithmic) {
    const most = chart.most ?? roundUp(Math.max(largest, chart.least ?? 0), chart.base);
    return [(value) => value / most, [0, most / 2, most]];
  }
  const smallest = known.reduce((a, b) => Math.min(a, b), largest);
  const low = Math.floor(Math.log10(Math.max(smallest, 1)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(largest, 1))));
  const ticks = Array.from({ length: high - low + 1 }, (_, step) => 10 ** (low + step));
  const scale = (value) => Math.max(0, Math.log10(Math.max(value, 1)) - low) / (high - low);
  return [scale, ticks];
}

function element(name, attributes, parent) {
  const made = svg(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function draw(chart, history) {
  const root = byId(chart.id);
  const { width, height } = root.getBoundingClientRect();
  if (width === 0) return;
  const [left, right, top, bottom] = [58, 6, 8, 20];
  const columns = chart.lines.map((line) => history[line.column]);
  const count = history.capacity;
  const shown = columns[0].length;
  const known = columns.flat().filter((value) => value !== null);
  const [scale, ticks] = scaleOf(chart, known);
  const x = (place) => left + (width - left - right) * (count - shown + place) / (count - 1);
  const y = (value) => top + (height - top - bottom) * (1 - scale(value));
  root.replaceChildren();
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  for (const tick of ticks) {
    const at = y(tick);
    element("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }, root);
    const label = element("text", { x: left - 8, y: at + 4, "text-anchor": "end" }, root);
    label.textContent = chart.text(tick);
  }
  for (const [points, text] of ranges[range].marks) {
    const place = shown - 1 - points;
    if (x(place) < left - 1) continue;
    const label = element("text", { x: x(place), y: height - 4, "text-anchor": "middle" }, root);
    label.textContent = text;
  }
  columns.forEach((column, number) => {
    let path = "";
    column.forEach((value, place) => {
      if (value === null) return;
      const isStart = place === 0 || column[place - 1] === null;
      path += `${isStart ? "M" : "L"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
    });
    if (chart.area && number === 0 && !column.includes(null) && shown > 1) {
      const ground = height - bottom;
      const end = `L${x(shown - 1)} ${ground}L${x(0)} ${ground}Z`;
      element("path", { class: "area", d: path + end }, root);
    }
    element("path", { class: ["one", "two", "three", "four"][number], d: path }, root);
  });
  const place = chart.cursor === undefined ? shown - 1 : Math.min(chart.cursor, shown - 1);
  if (chart.cursor !== undefined && shown > 0) {
    const at = x(place);
    element("line", { class: "cursor", x1: at, x2: at, y1: top, y2: height - bottom }, root);
  }
  readout(chart, columns, place, (shown - 1 - place) * history.seconds_per_point);
  chart.place = (pixels) => {
    const step = (width - left - right) / (count - 1);
    return Math.max(0, Math.min(shown - 1, Math.round((pixels - left) / step) - count + shown));
  };
}

function readout(chart, columns, place, secondsAgo) {
  const target = byId(chart.id + "-readout");
  target.replaceChildren();
  const words = chart.lines.map((line, number) => {
    const dot = document.createElement("span");
    dot.className = `dot c${number + 1}`;
    const value = columns[number][place];
    const text = `${line.name} ${chart.text(value === undefined ? null : value)}`;
    const part = document.createElement("span");
    part.append(dot, text);
    target.append(part);
    return text;
  });
  if (chart.cursor !== undefined) {
    const ago = document.createElement("span");
    ago.textContent = `${since(secondsAgo)} ago`;
    target.append(ago);
  }
  byId(chart.id).setAttribute("aria-label", `${chart.title}: ${words.join(", ")}`);
}

// The history of the range that is shown; null before it was fetched.
function shownHistory() {
  return range === "day" ? day : last && last.history;
}

function drawAll(some) {
  const history = shownHistory();
  if (history) some.forEach((chart) => draw(chart, history));
}

for (const chart of charts) {
  const root = byId(chart.id);
  const move = (cursor) => { chart.cursor = cursor; drawAll([chart]); };
  root.addEventListener("pointermove", (event) => {
    if (chart.place) move(chart.place(event.clientX - root.getBoundingClientRect().left));
  });
  root.addEventListener("pointerleave", () => move(undefined));
  root.addEventListener("blur", () => move(undefined));
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || !shownHistory()) return;
    event.preventDefault();
    const end = shownHistory().p50_us.length - 1;
    move(Math.max(0, Math.min(end, (chart.cursor ?? end) + step * (event.shiftKey ? 10 : 1))));
  });
}

// ---- tables, bars, tiles

const latest = (column) => (column.length ? column[column.length - 1] : null);

function cell(row, text, className) {
  const made = row.insertCell();
  made.className = className;
  made.textContent = text;
  return made;
}

function fill(parent, share) {
  const made = document.createElement("div");
  made.className = "fill";
  made.style.width = `${100 * Math.min(1, share)}%`;
  parent.prepend(made);
}

function pairs(id, rows) {
  byId(id).replaceChildren(...rows.flatMap(([name, value, color]) => {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    if (color) {
      const dot = document.createElement("span");
      dot.className = `dot ${color}`;
      term.append(dot);
    }
    term.append(name);
    text.textContent = value;
    return [term, text];
  }));
}

// Keys come percent-encoded; one that decodes to printable text is shown as clients write it.
function readable(key) {
  try {
    const text = decodeURIComponent(key);
    return /\p{C}/u.test(text) ? key : text;
  } catch {
    return key;
  }
}

function hotKeys(keys) {
  const body = byId("hot").tBodies[0];
  body.replaceChildren();
  if (keys === null) byId("hot-note").textContent = "Listing keys is turned off (-X).";
  const most = keys && keys.length ? keys[0].share : 1;
  for (const hot of keys ?? []) {
    const row = body.insertRow();
    const key = cell(row, "", "key");
    const text = document.createElement("span");
    text.textContent = readable(hot.key);
    key.title = text.textContent;
    key.append(text);
    fill(key, hot.share / most);
    cell(row, percent(hot.share, 2), "number");
    cell(row, percent(hot.error, 2), "number");
    cell(row, short(hot.requests_per_second), "number");
    cell(row, hot.value_bytes === null ? "–" : bytes(hot.value_bytes), "number");
  }
}

function engine(status) {
  const index = status.index;
  const lengths = index.lengths;
  const all = lengths.reduce((a, b) => a + b, 0) || 1;
  const shared = all - (lengths[0] || 0) - (lengths[1] || 0);
  byId("engine-note").textContent = index.is_expanding
    ? `${status.engine}: expanding, ${short(index.items)} items in ${short(index.buckets)} buckets`
    : `${status.engine}: at rest`;
  // For engines whose bucket heads follow hot items: the share of the sampled buckets of at least
  // two items.
  const led = index.hot_heads > 0
    ? [["Buckets led by a hot item", percent(index.hot_heads / Math.max(shared, 1), 0)]]
    : [];
  pairs("engine", [
    ["Load factor", index.load_factor.toFixed(2)],
    ["Buckets", short(index.buckets)],
    ["Expansions", short(index.expansions)],
    ["Longest pause of an expansion", duration(index.longest_pause_ns / 1000)],
    ["Evicted, reclaimed", `${short(index.evictions)}, ${short(index.reclaimed)}`],
    ["Stores out of memory", short(index.out_of_memory)],
    ...led,
  ]);
  const most = Math.max(...lengths, 1);
  byId("lengths-title").hidden = lengths.length === 0;
  byId("lengths").hidden = lengths.length === 0;
  const name = (place) => place === lengths.length - 1 && place > 0 ? `${place}+` : `${place}`;
  byId("lengths").replaceChildren(...lengths.map((buckets, place) => {
    const [bar, box] = [document.createElement("div"), document.createElement("div")];
    bar.className = "fill";
    bar.style.height = `${70 * buckets / most}%`;
    box.append(lengths.length > 12 ? "" : percent(buckets / all, 0), bar, name(place));
    box.title = `${name(place)} items: ${percent(buckets / all)} of the buckets`;
    return box;
  }));
  const words = lengths.map((buckets, place) => `${name(place)}: ${percent(buckets / all)}`);
  byId("lengths").setAttribute("aria-label", `Items in a bucket: ${words.join(", ")}`);
}

function memory(status) {
  const use = status.memory;
  const named = use.items + use.index + use.waiting + use.buffers + use.free_pages;
  const rows = [
    ["Items", use.items, "c1"], ["Index", use.index, "c2"],
    ["Connection buffers", use.buffers, "c4"], ["Waiting for a grace period", use.waiting, "c3"],
    ["Free space in partly used pages", Math.max(0, use.used - named), "c5"],
    ["Free", Math.max(0, use.limit - Math.max(use.used, named)) + use.free_pages, "c6"],
  ];
  pairs("uses", rows.map(([name, size, color]) => [name, bytes(size), color]));
  byId("uses-bar").setAttribute("aria-label", rows.map(([name, size]) =>
    `${name} ${bytes(size)}`).join(", "));
  byId("uses-bar").replaceChildren(...rows.map(([name, size, color]) => {
    const part = document.createElement("div");
    part.className = color;
    part.title = `${name}: ${bytes(size)}`;
    part.style.width = `${100 * size / Math.max(use.limit, named)}%`;
    return part;
  }));
  const body = byId("classes").tBodies[0];
  body.replaceChildren();
  for (const one of status.classes) {
    const row = body.insertRow();
    cell(row, bytes(one.slot_bytes), "number");
    cell(row, short(one.pages), "number");
    cell(row, short(one.used_slots), "number");
    fill(cell(row, "", "meter"), one.slots ? one.used_slots / one.slots : 0);
    cell(row, short(one.evictions), "number");
  }
}

// The nodes of the cluster that this one is in. Those that cannot be asked have no numbers.
function cluster({ nodes, age_ms: age }) {
  const body = byId("cluster").tBodies[0];
  body.replaceChildren();
  byId("cluster-card").hidden = false;
  const answers = nodes.filter((node) => node.answers);
  const sum = (column) => answers.reduce((total, node) => total + node[column], 0);
  const [partitions, lacking] = [sum("partitions"), sum("spans_short_of_copies")];
  const words = [nodes.length === 1 ? "1 member" : `${nodes.length} members`];
  if (answers.length < nodes.length) words.push(`${nodes.length - answers.length} do not answer`);
  const wanted = answers.reduce((most, node) => Math.max(most, node.backups), 0);
  const possible = Math.min(wanted, nodes.length - 1);
  if (lacking > 0) words.push(`${short(lacking)} spans lack copies`);
  else if (possible < wanted) words.push(`too few for ${wanted} backups of each key`);
  else words.push("no copy is missing");
  const moves = sum("moves_from");
  words.push(moves > 0 ? `${short(moves)} ranges move` : "nothing moves");
  if (age > 10000) words.push(`as of ${since(Math.round(age / 1000))} ago`);
  byId("cluster-note").textContent = nodes.length ? words.join(", ") + "." : "Not known yet.";
  for (const node of nodes) {
    const row = body.insertRow();
    cell(row, node.node, "number");
    cell(row, node.address + (node.is_super_peer ? ", keeps metadata" : ""), "");
    if (!node.answers) {
      row.className = "bad";
      cell(row, `does not answer: ${node.error}`, "").colSpan = 10;
      continue;
    }
    if (node.spans_short_of_copies > 0) row.className = "short";
    meter(row, partitions ? node.partitions / partitions : 0);
    const used = node.memory
      ? [node.memory.keys, node.memory.chunks].map((one) => one.used / Math.max(one.fillable, 1))
      : [0];
    meter(row, Math.max(...used));
    cell(row, short(node.chunk_ids), "number");
    cell(row, `${short(node.moves_from)}, ${short(node.moves_to)}`, "number");
    const whole = node.backups > 0 ? `${Math.min(node.backups, possible)} of each` : "none wanted";
    const lacks = `${short(node.spans_short_of_copies)} spans lack some`;
    cell(row, node.spans_short_of_copies > 0 ? lacks : whole, "");
    cell(row, short(node.kept_for_others), "number");
    cell(row, duration(1000 * node.lease_left_ms), "number");
    cell(row, short(node.operations_per_second), "number");
    cell(row, duration(node.round_trip_us), "number");
    cell(row, short(node.hot_moves), "number");
  }
}

// A bar with its share next to it.
function meter(row, share) {
  const made = cell(row, "", "meter");
  const text = document.createElement("span");
  text.textContent = percent(share, 0);
  made.append(text);
  fill(made, share);
}

// What twice and half of the memory would change, or nothing while it is not known.
function foretold(mrc) {
  if (!mrc?.miss_ratios) return "";
  const ratio = (memory) => mrc.miss_ratios[mrc.memory.indexOf(memory)];
  if (!(ratio(1) > 0)) return "";
  const [saved, added] = [1 - ratio(2) / ratio(1), ratio(0.5) / ratio(1) - 1];
  return `Twice the memory would save ${percent(saved, 0)} of the misses; `
    + `half of it would add ${percent(added, 0)}.`;
}

// The limits above which a tile is marked; those of connections and latency as in alerts.yml.
const CONNECTION_SHARE = 0.9;
const PROCESSOR_SHARE = 0.9;
const SLOW_US = 5000;

// Marks the tile with the number `id` if something is wrong, and says what below the number.
function judge(id, isBad, noteId, note) {
  byId(id).parentElement.classList.toggle("bad", isBad);
  if (isBad) byId(noteId).textContent = note;
}

// The stores that had been refused at the last look.
let refused = null;

function judgements(status) {
  const { history, connections } = status;
  judge("connections", connections.open >= CONNECTION_SHARE * connections.limit,
    "connection-limit", `close to the limit of ${short(connections.limit)}`);
  judge("cpu", latest(history.cpu_cores) >= PROCESSOR_SHARE * status.threads,
    "threads", `close to the ${100 * status.threads} % of all threads`);
  byId("slow").textContent = "in the server";
  judge("p99", latest(history.p99_us) > SLOW_US, "slow", `above ${duration(SLOW_US)}`);
  const now = status.index.out_of_memory;
  judge("memory", refused !== null && now > refused, "limit",
    `stores are refused, of ${bytes(status.memory.limit)}`);
  refused = now;
}

function tiles(status) {
  const history = status.history;
  byId("rate").textContent = short(latest(history.commands_per_second));
  byId("hits").textContent = percent(latest(history.hit_ratio));
  byId("misses").textContent = `${short(status.commands.get_misses)} misses in total`;
  byId("p50").textContent = duration(latest(history.p50_us));
  byId("p99").textContent = duration(latest(history.p99_us));
  byId("items").textContent = short(status.index.items);
  byId("evictions").textContent = `${short(latest(history.evictions_per_second))} evictions a second`;
  byId("memory").textContent = bytes(status.memory.used);
  byId("mrc").textContent = foretold(status.mrc);
  byId("limit").textContent = `of ${bytes(status.memory.limit)}`;
  byId("connections").textContent = short(status.connections.open);
  byId("connection-limit").textContent = `of ${short(status.connections.limit)}`
    + (status.connections.rejected ? `, ${short(status.connections.rejected)} rejected` : "");
  byId("threads").textContent = `of ${100 * status.threads} %`;
  byId("cpu").textContent = percent(latest(history.cpu_cores), 0);
  byId("about").textContent =
    `${status.engine} · version ${status.version} · up ${since(status.uptime_seconds)}`;
  judgements(status);
  document.title = `${short(latest(history.commands_per_second))}/s · Amalgam`;
}

// ---- the loop

// The last status, the last day's history and the time when it was fetched.
let last = null;
let day = null;
let dayTime = -Infinity;
let clusterTime = -Infinity;
let isPaused = false;

function show(status) {
  tiles(status);
  last = status;
  drawAll(charts);
  hotKeys(status.hot_keys);
  engine(status);
  memory(status);
}

function showState(text, isBad) {
  const state = byId("state");
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("bad", isBad);
}

async function fetched(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(5000) });
  if (!answer.ok) throw new Error(answer.status);
  return answer.json();
}

async function tick() {
  const start = performance.now();
  if (!isPaused && !document.hidden) {
    try {
      if (range === "day" && start - dayTime >= DAY_PERIOD_MS) {
        day = await fetched("/api/history");
        dayTime = start;
      }
      show(await fetched("/api/status"));
      if (last.engine === "cluster" && start - clusterTime >= CLUSTER_PERIOD_MS) {
        clusterTime = start;
        // It may take seconds, which the rest does not wait for.
        fetched("/api/cluster").then(cluster, () => {});
      }
      showState(last.is_stopping ? "shutting down" : "live", last.is_stopping);
    } catch {
      showState("the server does not answer", true);
    }
  }
  setTimeout(tick, Math.max(100, PERIOD_MS - (performance.now() - start)));
}

function pause() {
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  byId("pause").textContent = isPaused ? "Resume" : "Pause";
  if (isPaused) showState("paused", false);
}

async function otherRange() {
  range = range === "day" ? "minutes" : "day";
  byId("range").textContent = range === "day" ? "Last minutes" : "Last day";
  charts.forEach((chart) => { chart.cursor = undefined; });
  if (range === "day" && !day) {
    try {
      day = await fetched("/api/history");
    } catch {
      showState("the server does not answer", true);
    }
  }
  drawAll(charts);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

function otherTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
}

const system = matchMedia("(prefers-color-scheme: dark)");
setTheme(system.matches ? "dark" : "light");
system.addEventListener("change", () => setTheme(system.matches ? "dark" : "light"));
byId("pause").addEventListener("click", pause);
byId("range").addEventListener("click", otherRange);
byId("theme").addEventListener("click", otherTheme);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "p") pause();
  if (event.key === "d") otherRange();
  if (event.key === "t") otherTheme();
});
addEventListener("resize", () => {
  drawAll(charts);
});
tick();
