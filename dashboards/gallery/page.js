
"use strict";
// State is a few numbers; `draw` places a cell for what is visible and nothing else. A cell has two
// elements, so the old video stays until the new one has its first frame. Text of others is only ever
// set as textContent.
const data = JSON.parse(document.getElementById("data").textContent);
const MOST = 48;            // cells with a video; more are not decoded in time
const GAP = 10, TEXT = 40, SIDE = 220, HEAD = 26;
const LEAST = 120, LARGEST = 900;
const STALLED_MS = 3000;    // a load that takes longer does not hold up the next one
const $ = id => document.getElementById(id);
const view = $("view"), space = $("space"), heads = $("heads");

const state = {preset: 0, run: "", column: 0, pins: [], table: false, wide: 240, filter: ""};
let preset, columns = [], rows = [], geometry = null, waiting = -1;
const cells = new Map(), spare = [], texts = new Map();
let phase = 0, playing = true, speed = 1, lastTick = performance.now();

// ---- what is chosen

function choose(change) {
  const before = columns[state.column];
  Object.assign(state, change);
  preset = data.presets[state.preset];
  const all = preset ? preset.columns : [];
  columns = all.filter(c => !state.run || c.run === state.run);
  if ("preset" in change || "run" in change) {
    const kept = columns.indexOf(before);
    const near = before ? columns.findIndex(c => c.run === before.run && c.step === before.step) : -1;
    state.column = kept >= 0 ? kept : near >= 0 ? near : columns.length - 1;
    if ("preset" in change) state.pins = [];
    state.pins = state.pins.filter(pin => columns.includes(pin));
  }
  state.column = Math.max(0, Math.min(columns.length - 1, state.column));
  if ("preset" in change || "run" in change || "filter" in change || !rows.length) {
    const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
    rows = [];
    (preset ? preset.rows : []).forEach((row, place) => {
      const text = row[0].toLowerCase();
      if (words.every(word => text.includes(word)) && columns.some(c => c.files[place])) rows.push(place);
    });
  }
  controls();
  request();
}

function shown() {          // the columns of a card: those that are kept, then the chosen one
  const now = columns[state.column];
  return now ? [...state.pins.filter(pin => pin !== now), now] : [];
}

function name(column) {
  const step = column.step === null ? column.checkpoint : `step ${column.step.toLocaleString("en")}`;
  return data.runs.length > 1 && !state.run ? `${column.run} ${step}` : step;
}

function address(column, row) {
  const file = column.files[row];
  return file ? `${column.at}/${file === 1 ? preset.rows[row][2] : file}` : "";
}

// ---- controls

function options(select, names) {
  if (select.childElementCount === names.length) return;
  select.replaceChildren(...names.map(([value, text]) => {
    const one = document.createElement("option");
    one.value = value; one.textContent = text;
    return one;
  }));
}

function controls() {
  const now = columns[state.column];
  options($("run"), [["", "all runs"], ...data.runs.map(run => [run, run])]);
  $("run").hidden = data.runs.length < 2;
  $("run").value = state.run;
  options($("preset"), data.presets.map((one, n) => [n, one.name || "no preset"]));
  $("preset").hidden = data.presets.length < 2;
  $("preset").value = state.preset;
  const slider = $("checkpoint");
  slider.max = Math.max(0, columns.length - 1);
  slider.value = state.column;
  slider.disabled = columns.length < 2;
  const epoch = now && now.epoch !== null ? ` · epoch ${now.epoch}` : "";
  const weights = now && now.weights === "ema" ? " · EMA" : "";
  $("label").textContent = now ? `${name(now)}${epoch}${weights} · ${state.column + 1} of ${columns.length}` : "no videos";
  $("label").title = now ? now.checkpoint : "";
  $("settings").textContent = $("settings").title = now ? now.settings : "";
  $("pin").setAttribute("aria-pressed", state.pins.includes(now));
  $("pin").disabled = state.table || columns.length < 2;
  $("table").setAttribute("aria-pressed", state.table);
  $("pins").hidden = state.table;
  $("pins").replaceChildren(...state.pins.map(pin => {
    const button = document.createElement("button");
    button.textContent = name(pin);
    button.title = `drop ${pin.checkpoint}`;
    button.onclick = () => choose({pins: state.pins.filter(one => one !== pin)});
    return button;
  }));
  const all = preset ? preset.rows.length : 0;
  $("shown").textContent = rows.length === all ? `${all} prompts` : `${rows.length} of ${all} prompts`;
  figures(now);
}

const SVG = "http://www.w3.org/2000/svg";

function figures(now) {     // of each checkpoint, as far as it was measured
  const known = (data.figures || []).filter(([key]) => columns.some(c => c.figures && key in c.figures));
  $("figures").hidden = !known.length;
  if (!known.length) return;
  const say = known.map(([key, label]) => now && now.figures && key in now.figures ? `${label} ${round(now.figures[key])}` : "").filter(Boolean);
  $("figures").querySelector("summary").textContent = say.length ? say.join(" · ") : "not measured at this checkpoint";
  if (!$("figures").open) return;
  $("charts").replaceChildren(...known.map(([key, label, about]) => chart(key, label, about, now)));
}

function round(value) { return value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 1 ? 1 : 3); }

function chart(key, label, about, now) {
  const box = document.createElement("div");
  box.className = "chart"; box.title = about;
  const value = document.createElement("b");
  const has = c => c && c.figures && key in c.figures;
  value.textContent = has(now) ? round(now.figures[key]) : "–";
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 190 34");
  const values = columns.filter(has).map(c => c.figures[key]);
  const low = Math.min(...values), high = Math.max(...values);
  const at = (column, n) => [4 + 182 * (columns.length > 1 ? n / (columns.length - 1) : .5), 30 - 26 * (high > low ? (column.figures[key] - low) / (high - low) : .5)];
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", columns.map((c, n) => has(c) ? at(c, n).map(x => x.toFixed(1)).join(",") : "").filter(Boolean).join(" "));
  svg.append(line);
  if (has(now)) {
    const dot = document.createElementNS(SVG, "circle"), [x, y] = at(now, state.column);
    dot.setAttribute("cx", x); dot.setAttribute("cy", y); dot.setAttribute("r", 3);
    svg.append(dot);
  }
  box.append(value, label, svg);
  return box;
}

// ---- where everything is

function measure() {
  const wide = view.clientWidth, tall = view.clientHeight;
  const first = columns[state.column] || {height: 1, width: 1};
  const aspect = Math.min(1.8, Math.max(.3, (first.height || 1) / (first.width || 1)));
  const count = state.table ? columns.length : shown().length;
  let cell = Math.max(LEAST, Math.min(LARGEST, state.wide, state.table ? wide - SIDE - GAP : (wide - GAP) / Math.max(1, count) - GAP));
  for (;; cell += 20) {     // no more cells than a browser plays at once
    const high = cell * aspect;
    const g = {wide, tall, cell, high, count};
    if (state.table) {
      g.step = cell + GAP; g.line = Math.max(high, 56) + GAP;
      g.total = rows.length; g.width = SIDE + count * g.step; g.top = HEAD + 4;
      if (Math.ceil((wide - SIDE) / g.step + 1) * Math.ceil(tall / g.line + 1) <= MOST || cell > LARGEST) return g;
    } else {
      g.across = Math.max(1, Math.floor((wide - GAP) / (count * (cell + 4) - 4 + GAP)));
      g.cell = Math.min(LARGEST, Math.floor(((wide - GAP) / g.across - GAP + 4) / Math.max(1, count)) - 4);   // fills the row
      g.high = g.cell * aspect; g.card = count * (g.cell + 4) - 4;
      g.line = g.high + TEXT + GAP; g.total = Math.ceil(rows.length / g.across); g.width = 0; g.top = GAP;
      if (g.across * count * Math.ceil(tall / g.line + 1) <= MOST || cell > LARGEST) return g;
    }
  }
}

let wanted = false;
function request() {        // at most one drawing a frame, whatever happens
  if (!wanted) { wanted = true; requestAnimationFrame(() => { wanted = false; draw(); }); }
}

function draw() {
  const g = geometry = measure();
  space.style.height = `${g.top + g.total * g.line}px`;
  space.style.width = g.width ? `${g.width}px` : "";
  const first = Math.max(0, Math.floor((view.scrollTop - g.top) / g.line));
  const last = Math.min(g.total - 1, Math.floor((view.scrollTop + g.tall - g.top) / g.line));
  const placed = new Set(), written = new Set(), titled = [];
  if (state.table) {
    const from = Math.max(0, Math.floor(view.scrollLeft / g.step));
    const to = Math.min(g.count - 1, Math.floor((view.scrollLeft + g.wide - SIDE) / g.step));
    for (let n = from; n <= to; n++) titled.push(n);
    for (let line = first; line <= last; line++) {
      const y = g.top + line * g.line;
      write(`${line}`, written, rows[line], view.scrollLeft, y, SIDE - GAP, g.line - 4, true);
      for (let n = from; n <= to; n++) place(`${line}:${n}`, placed, columns[n], rows[line], SIDE + n * g.step, y, g, "");
    }
  } else {
    const slots = shown();
    for (let line = first; line <= last; line++) for (let n = 0; n < g.across; n++) {
      const at = line * g.across + n;
      if (at >= rows.length) break;
      const x = GAP + n * (g.card + GAP), y = g.top + line * g.line;
      slots.forEach((column, slot) => place(`${at}:${slot}`, placed, column, rows[at], x + slot * (g.cell + 4), y, g, slots.length > 1 ? name(column) : ""));
      write(`${at}`, written, rows[at], x, y + g.high, g.card, TEXT, false);
    }
  }
  for (const [key, cell] of cells) if (!placed.has(key)) { cell.leave(); cells.delete(key); }
  for (const [key, text] of texts) if (!written.has(key)) { text.remove(); texts.delete(key); }
  head(titled, g);
  empty();
  if (waiting < 0) waiting = [...cells.values()].filter(cell => cell.url && !cell.front).length;
}

function filled() {         // a cell has its first frame: when all have, the page is there
  if (waiting > 0 && --waiting === 0) performance.mark("shown");
}

function head(titled, g) {
  heads.replaceChildren(...titled.map(n => {
    const one = document.createElement("div");
    one.className = n === state.column ? "head now" : "head";
    one.textContent = name(columns[n]); one.title = columns[n].checkpoint;
    one.style.transform = `translateX(${SIDE + n * g.step}px)`; one.style.width = `${g.step}px`;
    one.onclick = () => choose({column: n});
    return one;
  }), ...(titled.length ? [corner(g)] : []));
}

function corner(g) {        // above the prompts, which stay where they are
  const one = document.createElement("div");
  one.className = "head corner";
  one.style.transform = `translateX(${view.scrollLeft}px)`; one.style.width = `${SIDE - GAP}px`;
  return one;
}

function empty() {
  let note = space.querySelector(".empty");
  if (rows.length) { if (note) note.remove(); return; }
  if (!note) { note = document.createElement("p"); note.className = "empty"; space.append(note); }
  note.textContent = !data.presets.length ? "There are no videos yet." : state.filter ? `No prompt has “${state.filter}”.` : "There are no videos of this choice.";
}

function write(key, written, row, x, y, wide, tall, side) {
  written.add(key);
  let text = texts.get(key);
  if (!text) { text = document.createElement("div"); texts.set(key, text); space.append(text); }
  const [prompt, sample] = preset.rows[row];
  text.className = side ? "text side" : "text";
  text.style.transform = `translate(${x}px,${y}px)`;
  text.style.width = `${wide}px`; text.style.height = `${tall}px`;
  const said = sample ? `${prompt}  (sample ${sample})` : prompt;
  if (text.textContent !== said) { text.textContent = said; text.title = said; }
}

function place(key, placed, column, row, x, y, g, tag) {
  placed.add(key);
  let cell = cells.get(key);
  if (!cell) { cell = spare.pop() || new Cell(); cells.set(key, cell); space.append(cell.root); }
  cell.at(x, y, g.cell, g.high);
  cell.show(column, row, tag);
}

// ---- a cell: two elements of a kind, one of them in front

class Cell {
  constructor() {
    this.root = document.createElement("div"); this.root.className = "cell";
    this.box = document.createElement("div"); this.box.className = "box";
    this.note = document.createElement("div"); this.note.className = "note";
    this.tag = document.createElement("div"); this.tag.className = "tag";
    this.flag = document.createElement("div"); this.flag.className = "flag";
    this.box.append(this.note, this.tag, this.flag); this.root.append(this.box);
    this.front = this.back = null; this.url = ""; this.loading = ""; this.since = 0;
  }
  at(x, y, wide, tall) {
    this.root.style.transform = `translate(${x}px,${y}px)`;
    this.root.style.width = this.box.style.width = `${wide}px`;
    this.root.style.height = this.box.style.height = `${tall}px`;
  }
  show(column, row, tag) {
    this.tag.textContent = tag;
    this.flag.textContent = (column.flags && column.flags[row]) || "";
    const url = address(column, row);
    if (url === this.url) return;
    this.url = url;
    if (!url) { this.clear("not made at this checkpoint"); return; }
    if (!this.front) this.note.textContent = "";
    if (!this.loading || performance.now() - this.since > STALLED_MS) this.load();
  }
  load() {                  // one at a time: of a fast scrub only the newest is loaded
    const url = this.loading = this.url, still = url.endsWith(".png");
    this.since = performance.now();
    const kind = still ? "IMG" : "VIDEO";
    let media = this.back && this.back.tagName === kind ? this.back : null;
    if (!media) { if (this.back) drop(this.back); media = this.back = make(kind); this.box.prepend(media); }
    media.onload = media.onseeked = media.onloadeddata = null;
    const ready = () => { media.onseeked = null; this.ready(media, url); };
    media.onerror = () => this.failed(url);
    if (still) media.onload = ready;
    else media.onloadeddata = () => {
      media.onloadeddata = null;
      const t = moment(media);
      if (t < .02) return ready();
      media.onseeked = ready; media.currentTime = t;
    };
    media.src = url;
  }
  ready(media, url) {
    if (this.loading !== url) return;
    this.loading = "";
    if (!this.url) return this.clear(this.note.textContent);
    this.back = this.front; this.front = media;
    media.className = "front"; this.note.textContent = "";
    if (!this.back) filled();
    if (this.back) { this.back.className = ""; if (this.back.pause) this.back.pause(); }
    follow(media);
    if (this.url !== url) this.load();
  }
  failed(url) {
    if (this.loading !== url) return;
    this.loading = "";
    if (this.url !== url && this.url) return this.load();
    if (!this.front) filled();
    this.clear("cannot be played: the file is missing or damaged");
  }
  clear(why) {
    for (const media of [this.front, this.back]) if (media) drop(media);
    this.front = this.back = null; this.loading = ""; this.note.textContent = why;
  }
  leave() {                 // kept for the next cell that comes into view
    this.clear(""); this.url = ""; this.root.remove();
    if (spare.length < MOST) spare.push(this);
  }
}

function make(kind) {
  const media = document.createElement(kind);
  if (kind === "VIDEO") { media.muted = true; media.loop = true; media.playsInline = true; media.preload = "auto"; media.disableRemotePlayback = true; }
  return media;
}

function drop(media) {      // frees its decoder at once
  media.onload = media.onseeked = media.onloadeddata = media.onerror = null;
  if (media.pause) media.pause();
  media.removeAttribute("src");
  if (media.load) media.load();
  media.remove();
}

// ---- time: one phase from 0 to 1 for all that is shown

function moment(media) { return phase * (media.duration || 0); }

function duration() {
  const now = columns[state.column];
  return now && now.fps > 0 && now.frames > 0 ? now.frames / now.fps : 2;
}

function follow(media) {
  if (!media.play) return;
  const long = media.duration || 0;
  let late = media.currentTime - phase * long;
  late -= Math.round(late / long) * long || 0;
  if (!playing) {
    if (!media.paused) media.pause();
    const t = Math.min(phase * long, Math.max(0, long - .001));
    if (!media.seeking && Math.abs(media.currentTime - t) > .004) media.currentTime = t;
    return;
  }
  const rate = speed * long / duration();
  if (Math.abs(late) > Math.max(.15, .1 * long) && !media.seeking) media.currentTime = phase * long;
  // Small differences are caught up with: a seek would be seen.
  const wanted = Math.max(.1, Math.min(8, rate * (1 - Math.max(-.5, Math.min(.5, late * 2)))));
  if (Math.abs(media.playbackRate - wanted) > .01) media.playbackRate = wanted;
  if (media.paused) media.play().catch(() => {});
}

let followed = 0;
function tick(now) {
  const passed = Math.min(.25, (now - lastTick) / 1000);
  lastTick = now;
  if (playing) {
    phase = (phase + passed * speed / duration()) % 1;
    $("time").value = phase;
  }
  const one = columns[state.column];
  const frames = one ? one.frames : 0;
  const said = frames > 0 ? `frame ${Math.min(frames, Math.floor(phase * frames + 1e-6) + 1)} of ${frames}` : "";
  if ($("frame").textContent !== said) $("frame").textContent = said;
  if (!playing || now - followed > 200) {
    followed = now;
    for (const cell of cells.values()) if (cell.front) follow(cell.front);
  }
  requestAnimationFrame(tick);
}

function play(on) {
  playing = on;
  $("play").textContent = playing ? "❚❚" : "▶";
  followed = 0;
}

function frame(by) {
  const one = columns[state.column];
  if (!one || one.frames < 1) return;
  play(false);
  const next = Math.floor(phase * one.frames + 1e-6) + by;
  phase = ((next + one.frames) % one.frames + .25) / one.frames;   // inside the frame, not at its edge
  $("time").value = phase;
}

// ---- keys and clicks

function move(by) {
  choose({column: state.column + by});
  reveal();
}

function reveal() {         // the chosen checkpoint, in the table
  if (!state.table) return;
  const geometry = measure();
  space.style.width = `${geometry.width}px`;
  const left = state.column * geometry.step, seen = view.clientWidth - SIDE - geometry.step;
  if (left < view.scrollLeft) view.scrollLeft = left;
  if (left > view.scrollLeft + seen) view.scrollLeft = left - seen;
}

function pin() {
  const now = columns[state.column];
  if (!now || state.table) return;
  choose({pins: state.pins.includes(now) ? state.pins.filter(one => one !== now) : [...state.pins, now]});
}

function table() {
  choose({table: !state.table});
  view.scrollLeft = 0;
  reveal();
}

function size(by) {
  state.wide = Math.max(LEAST, Math.min(LARGEST, state.wide * by));
  request();
}

function turn(select, by) {
  const count = select.childElementCount;
  select.selectedIndex = (select.selectedIndex + by + count) % count;
  select.onchange();
}

const KEYS = {
  ArrowLeft: () => move(-1), ArrowRight: () => move(1), Home: () => move(-columns.length), End: () => move(columns.length),
  " ": () => play(!playing), ",": () => frame(-1), ".": () => frame(1), s: () => turn($("speed"), 1),
  p: pin, x: () => choose({pins: []}), t: table,
  "+": () => size(1.25), "=": () => size(1.25), "-": () => size(.8),
  "/": () => $("filter").focus(), "[": () => turn($("preset"), -1), "]": () => turn($("preset"), 1),
  r: () => turn($("run"), 1), "?": () => $("keys").showModal(),
};

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (event.target === $("filter")) {
    if (event.key === "Escape" || event.key === "Enter") { if (event.key === "Escape") { $("filter").value = ""; choose({filter: ""}); } view.focus(); }
    return;
  }
  if (event.target.tagName === "SELECT" && event.key.startsWith("Arrow")) return;
  if (event.target.id === "time" && event.key.startsWith("Arrow")) return;
  if (event.key === " " && event.target.tagName === "BUTTON") return;
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

$("checkpoint").oninput = event => move(+event.target.value - state.column);
$("before").onclick = () => move(-1);
$("after").onclick = () => move(1);
$("pin").onclick = pin;
$("play").onclick = () => play(!playing);
$("time").oninput = event => { play(false); phase = Math.min(.9999, +event.target.value); };
$("speed").onchange = () => { speed = +$("speed").value; };
$("smaller").onclick = KEYS["-"];
$("larger").onclick = KEYS["+"];
$("table").onclick = table;
$("help").onclick = KEYS["?"];
$("figures").ontoggle = () => figures(columns[state.column]);
$("filter").oninput = () => { view.scrollTop = 0; choose({filter: $("filter").value}); };
$("preset").onchange = () => choose({preset: +$("preset").value});
$("run").onchange = () => choose({run: $("run").value});
view.onscroll = request;
new ResizeObserver(request).observe(view);

const list = data.problems || [];
$("problems").hidden = !list.length;
$("problems").querySelector("summary").textContent = list.length === 1 ? list[0] : `${list.length} things are not shown: ${list[0]}`;
$("problems").querySelector("ul").replaceChildren(...list.map(text => {
  const one = document.createElement("li");
  one.textContent = text;
  return one;
}));
const sizes = data.presets.map(one => one.columns.length);
choose({preset: Math.max(0, sizes.indexOf(Math.max(...sizes)))});
view.focus();
requestAnimationFrame(tick);
