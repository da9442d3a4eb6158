// The report's script, first of three parts: data, numbers as text, colours. Plain JavaScript without libraries. The build
// joins page_data.js, page_picture.js and page_controls.js to one strict script. Times are nanoseconds inside the script.
// A "side" is "simulated" (predicted) or "executed" (measured; emulated where the clock is).

let data = JSON.parse(document.getElementById('report-data').textContent);
const canvas = document.getElementById('canvas');
const byId = id => document.getElementById(id);
const SIDES = ['simulated', 'executed'];
const SIDE_NAME = {simulated: 'predicted', executed: 'executed', replayed: 'by replayed steps'};
// A processor in the place of GPUs measures nothing of them: its times are compared with no prediction.
const sideName = side => side === 'executed' && strategy.raw.elsewhere ? 'on this CPU' : SIDE_NAME[side];
const QUEUE_ORDER = ['compute', 'to_expert', 'to_attention', 'move', 'reduce', 'to_device', 'to_host', 'guests', 'move_back',
  'move_saved', 'sequence'];

// ---- data: lanes of spans, and the spans of each op ----

// "to_device 3" is the lane of link 3: links come one after another.
function queueRank(lane) {
  const [queue, link] = lane.split(' ');
  const rank = QUEUE_ORDER.indexOf(queue);
  return rank < 0 ? 1000 : rank + 2 * Number(link || 0);
}

// lanes[device] = Map(queue -> {start[], end[], op[], first, last, busy}); at[op * devices + device] = [start, end]
function readSide(raw, ops, devices) {
  const side = {source: raw.source, step: raw.step * 1e9, end: raw.step * 1e9, uses: raw.uses, longestWait: raw.longest_wait, criticalPath: raw.critical_path, overlap: raw.overlap, ops, lanes: devices.map(() => new Map()), at: new Map()};
  for (let i = 0; i < raw.spans.length; i += 4) {
    const [op, device, start, length] = raw.spans.slice(i, i + 4);
    side.end = Math.max(side.end, start + length);
    const queue = data.queues[ops[op][4]];
    const lanes = side.lanes[device];
    if (!lanes.has(queue)) lanes.set(queue, {start: [], end: [], op: []});
    const lane = lanes.get(queue);
    lane.start.push(start); lane.end.push(start + length); lane.op.push(op);
    side.at.set(op * devices.length + device, [start, start + length]);
  }
  // A device that computes nothing has a lane all the same: it is idle.
  for (const lanes of side.lanes) if (!lanes.has('compute')) lanes.set('compute', {start: [], end: [], op: []});
  for (const lanes of side.lanes) for (const lane of lanes.values()) finishLane(lane, side.end);
  return side;
}

// All that is no busy time from 0 to the end of the step is a gap: before the first span and after the last one, too.
// Where steps overlap, one step is drawn alone, and its end comes after the next step has begun.
function finishLane(lane, end) {
  lane.last = 0; lane.busy = 0;
  lane.gaps = [];  // [start, end, index of the span that ends it; as many as there are spans = none does]
  for (let i = 0; i < lane.start.length; ++i) {
    if (lane.start[i] > lane.last) lane.gaps.push([lane.last, lane.start[i], i]);
    lane.busy += Math.max(0, lane.end[i] - Math.max(lane.start[i], lane.last));
    lane.last = Math.max(lane.last, lane.end[i]);
  }
  if (end > lane.last) lane.gaps.push([lane.last, end, lane.start.length]);
}

function readStrategy(raw) {
  const strategy = {raw, devices: raw.devices, order: raw.order, sides: {}};
  const simulatedOps = raw.simulated && raw.simulated.ops;
  for (const name of SIDES) {
    if (raw[name]) strategy.sides[name] = readSide(raw[name], raw[name].ops || simulatedOps, raw.devices);
  }
  strategy.names = SIDES.filter(name => strategy.sides[name]);
  strategy.joined = Boolean(raw.simulated && raw.executed && !raw.executed.ops);
  strategy.end = Math.max(...strategy.names.map(name => strategy.sides[name].end), 1);
  strategy.typical = typicalDurations(strategy);
  strategy.queues = [...new Set(strategy.names.flatMap(name => strategy.sides[name].lanes.flatMap(l => [...l.keys()])))]
    .sort((a, b) => queueRank(a) - queueRank(b));
  return strategy;
}

// A short duration (15th percentile) of each kind and phase on each device type: it decides how much text the spans get,
// so that spans of a kind look alike.
const typicalKey = (strategy, device, op) => `${strategy.devices[device].type} ${op[0]} ${op[1]}`;
function typicalDurations(strategy) {
  const durations = new Map();
  for (const name of strategy.names) strategy.sides[name].lanes.forEach((lanes, device) => {
    const lane = lanes.get('compute');
    for (let i = 0; lane && i < lane.start.length; ++i) {
      const key = typicalKey(strategy, device, strategy.sides[name].ops[lane.op[i]]);
      if (!durations.has(key)) durations.set(key, []);
      durations.get(key).push(lane.end[i] - lane.start[i]);
    }
  });
  for (const [key, list] of durations) durations.set(key, list.sort((a, b) => a - b)[Math.floor(0.15 * list.length)]);
  return durations;
}

const cache = new Map();
function strategyAt(index) {
  if (!cache.has(index)) cache.set(index, readStrategy(data.strategies[index]));
  return cache.get(index);
}
const hasTimeline = raw => Boolean(raw.simulated || raw.executed);
const withTimelines = () => data.strategies.map((s, i) => i).filter(i => hasTimeline(data.strategies[i]));
let shown = withTimelines();

// ---- numbers as text ----

function digits(value, count) {
  if (value === 0) return '0';
  const rounded = Number(Math.abs(value).toPrecision(count));  // 0.9996 is written as 1.00, not as 1.000
  const exponent = Math.floor(Math.log10(rounded) + 1e-9);
  return value.toFixed(Math.max(0, Math.min(12, count - 1 - exponent)));
}
function timeText(ns, count = 3) {
  const size = Math.abs(ns);
  if (size >= 0.9995e9) return digits(ns / 1e9, count) + ' s';
  if (size >= 0.9995e6) return digits(ns / 1e6, count) + ' ms';
  if (size >= 0.9995e3) return digits(ns / 1e3, count) + ' \u00b5s';
  return digits(ns, count) + ' ns';
}
function memorySize(bytes) { return bytes < 2 ** 28 ? `${digits(bytes / 2 ** 20, 3)} MiB` : `${digits(bytes / 2 ** 30, 3)} GiB`; }
function percent(share, decimals = 1) { return (100 * share).toFixed(decimals) + ' %'; }
function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// ---- colours: one hue per kind, light forward and dark backward (after Okabe and Ito) ----

const HUES = {
  attention: ['#56b4e9', '#0b6aa8'], experts: ['#f0a330', '#c44e00'], dispatch: ['#4cc3a0', '#00795a'],
  combine: ['#e2a5c8', '#a8477f'], head: ['#9a78c9', '#9a78c9'], embed: ['#a9a84a', '#77762a'], move: ['#3fc0d0', '#13808f'],
  reduce: ['#a98a66', '#a98a66'], update: ['#76828d', '#76828d'], norm: ['#b3bcc4', '#b3bcc4'], merge: ['#c9b8ea', '#8672b4'],
  reduce_scatter: ['#a98a66', '#a98a66'], all_gather: ['#7f6a52', '#7f6a52'], balance: ['#efe04a', '#b9a900'],
  fetch: ['#b7d84b', '#6f8f12'], store: ['#ff9c8a', '#c9402b'], publish: ['#8fa3ff', '#3a4fd0'], take: ['#5fd35f', '#1f8a1f'],
  project: ['#5fc8e8', '#2b7f9c'], to_heads: ['#c6d94e', '#75821f'], scores: ['#2f8fd0', '#1b557d'], to_tokens: ['#8fd98a', '#3f8a3a'],
  lend: ['#d98cf0', '#8e2fb0'], settle: ['#c98d8d', '#7d3c3c'], tally: ['#f7c9a0', '#a8683a'], migrate: ['#45588f', '#45588f'],
};
function hashHue(kind) {
  let hash = 0;
  for (const c of kind) hash = (hash * 31 + c.codePointAt(0)) % 360;
  return [`hsl(${hash} 45% 65%)`, `hsl(${hash} 50% 40%)`];
}
function mix(a, b) {
  if (a[0] !== '#' || b[0] !== '#') return b;
  const part = i => Math.round((parseInt(a.slice(i, i + 2), 16) + parseInt(b.slice(i, i + 2), 16)) / 2).toString(16).padStart(2, '0');
  return '#' + part(1) + part(3) + part(5);
}
function colorOf(kind, phase) {
  const [light, dark] = HUES[kind] || hashHue(kind);
  return phase === 'B' ? dark : phase === 'R' ? mix(light, dark) : phase === 'W' ? mix(dark, '#000000') : light;
}
function inkOn(color) {
  if (color[0] !== '#') return '#000';
  const channel = i => parseInt(color.slice(i, i + 2), 16);
  return 0.299 * channel(1) + 0.587 * channel(3) + 0.114 * channel(5) > 135 ? '#10161c' : '#ffffff';
}
const PHASES = {F: 'forward', B: 'backward', R: 'recompute', W: 'gradients of weights'};
const styles = new Map();
function styleOf(op) {
  const key = op[0] + op[1];
  if (!styles.has(key)) {
    const fill = colorOf(data.kinds[op[0]], op[1]);
    styles.set(key, {fill, ink: inkOn(fill)});
  }
  return styles.get(key);
}
function opTitle(op) {
  const parts = [data.kinds[op[0]] + (op[1] ? ' ' + (PHASES[op[1]] || op[1]) : '')];
  if (op[2] >= 0) parts.push('layer ' + op[2]);
  if (op[3] >= 0) parts.push('microbatch ' + op[3]);
  if (op[5] > 0) parts.push('group ' + op[5]);
  return parts.join(' \u00b7 ');
}
let theme = {};
function readTheme() {
  const css = getComputedStyle(document.documentElement);
  for (const name of ['card', 'text', 'soft', 'line', 'lane', 'gap', 'hatch', 'ink', 'accent', 'compute', 'late', 'early']) {
    theme[name] = css.getPropertyValue('--' + name).trim();
  }
  const tile = document.createElement('canvas');
  tile.width = tile.height = 8;
  const pen = tile.getContext('2d');
  pen.fillStyle = theme.gap; pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = theme.hatch; pen.lineWidth = 1.3;
  for (const x of [-8, 0, 8]) { pen.beginPath(); pen.moveTo(x, 8); pen.lineTo(x + 8, 0); pen.stroke(); }
  theme.tile = tile;
}
