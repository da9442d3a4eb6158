#include "hetermoe/report/page.h"

namespace hetermoe {

// Plain JavaScript without libraries. Order: data, numbers as text, colours, layout, drawing, pointing,
// controls. Times are nanoseconds inside the script. A "side" is "simulated" (predicted) or "executed"
// (measured).
const char* const kPageScript = R"js(
'use strict';
(() => {
const data = JSON.parse(document.getElementById('report-data').textContent);
const canvas = document.getElementById('canvas');
if (!canvas) return;
const byId = id => document.getElementById(id);
const SIDES = ['simulated', 'executed'];
const SIDE_NAME = {simulated: 'predicted', executed: 'measured'};
const QUEUE_ORDER = ['compute', 'to_expert', 'to_attention', 'move', 'reduce'];

// ---- data: lanes of spans, and the spans of each op ----

function queueRank(queue) {
  const rank = QUEUE_ORDER.indexOf(queue);
  return rank < 0 ? QUEUE_ORDER.length : rank;
}

// lanes[device] = Map(queue -> {start[], end[], op[], first, last, busy}); at[op * devices + device] = [start, end]
function readSide(raw, ops, devices) {
  const side = {source: raw.source, step: raw.step * 1e9, uses: raw.uses, ops, lanes: devices.map(() => new Map()), at: new Map()};
  for (let i = 0; i < raw.spans.length; i += 4) {
    const [op, device, start, length] = raw.spans.slice(i, i + 4);
    const queue = data.queues[ops[op][4]];
    const lanes = side.lanes[device];
    if (!lanes.has(queue)) lanes.set(queue, {start: [], end: [], op: []});
    const lane = lanes.get(queue);
    lane.start.push(start); lane.end.push(start + length); lane.op.push(op);
    side.at.set(op * devices.length + device, [start, start + length]);
  }
  for (const lanes of side.lanes) for (const lane of lanes.values()) finishLane(lane);
  return side;
}

function finishLane(lane) {
  lane.first = lane.start[0];
  lane.last = 0; lane.busy = 0;
  lane.gaps = [];  // [start, end, index of the span that ends it]
  for (let i = 0; i < lane.start.length; ++i) {
    if (i > 0 && lane.start[i] > lane.last) lane.gaps.push([lane.last, lane.start[i], i]);
    lane.busy += Math.max(0, lane.end[i] - Math.max(lane.start[i], lane.last));
    lane.last = Math.max(lane.last, lane.end[i]);
  }
}

function readStrategy(raw) {
  const strategy = {raw, devices: raw.devices, order: raw.order, sides: {}};
  const simulatedOps = raw.simulated && raw.simulated.ops;
  for (const name of SIDES) {
    if (raw[name]) strategy.sides[name] = readSide(raw[name], raw[name].ops || simulatedOps, raw.devices);
  }
  strategy.names = SIDES.filter(name => strategy.sides[name]);
  strategy.joined = Boolean(raw.simulated && raw.executed && !raw.executed.ops);
  strategy.end = Math.max(...strategy.names.map(name => strategy.sides[name].step), 1);
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
const shown = data.strategies.map((s, i) => i).filter(i => data.strategies[i].simulated || data.strategies[i].executed);

// ---- numbers as text ----

function digits(value, count) {
  if (value === 0) return '0';
  const exponent = Math.floor(Math.log10(Math.abs(value)) + 1e-9);
  return value.toFixed(Math.max(0, Math.min(12, count - 1 - exponent)));
}
function timeText(ns, count = 3) {
  const size = Math.abs(ns);
  if (size >= 0.9995e9) return digits(ns / 1e9, count) + ' s';
  if (size >= 0.9995e6) return digits(ns / 1e6, count) + ' ms';
  if (size >= 0.9995e3) return digits(ns / 1e3, count) + ' \u00b5s';
  return digits(ns, count) + ' ns';
}
function gib(bytes) { return digits(bytes / 2 ** 30, 3); }
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
  balance: ['#efe04a', '#b9a900'],
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
  return phase === 'B' ? dark : phase === 'R' ? mix(light, dark) : light;
}
function inkOn(color) {
  if (color[0] !== '#') return '#000';
  const channel = i => parseInt(color.slice(i, i + 2), 16);
  return 0.299 * channel(1) + 0.587 * channel(3) + 0.114 * channel(5) > 135 ? '#10161c' : '#ffffff';
}
const PHASES = {F: 'forward', B: 'backward', R: 'recompute'};
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

// ---- state and layout ----

const AXIS = 46, LABEL = 212, RIGHT = 152, FONT = 'system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const state = {index: shown[0], view: 'both', comm: true, from: 0, to: 1, scroll: 0, hover: null, width: 0, height: 0, total: 0};
let strategy = null, rows = [], lanes = [];

function visibleSides() {
  return state.view === 'both' ? strategy.names : strategy.names.filter(name => name === state.view);
}

const ROLE_NAME = {both: 'attention + expert'};

// rows: group headings and devices. lanes: {y, height, device, queue, side, lane, thick}
function layOut() {
  const sides = visibleSides();
  const many = strategy.devices.length > 10;
  const size = {thick: sides.length > 1 ? (many ? 17 : 26) : (many ? 22 : 34), ribbon: many ? 5 : 10, thin: sides.length > 1 ? 6 : 10};
  rows = []; lanes = [];
  let y = 6, group = '';
  for (const device of strategy.order) {
    const info = strategy.devices[device];
    const key = info.role + ' ' + info.type;
    if (key !== group) {
      const members = strategy.devices.filter(d => d.role === info.role && d.type === info.type).length;
      rows.push({y, height: 24, heading: (ROLE_NAME[info.role] || info.role).toUpperCase(), detail: `${members} \u00d7 ${info.type}`});
      y += 26; group = key;
    }
    y = layOutDevice(device, y, sides, size) + (many ? 8 : 14);
  }
  state.total = y;
}

function layOutDevice(device, top, sides, size) {
  const add = (y, height, queue, side, thick) =>
    lanes.push({y, height, device, queue, side, thick, lane: strategy.sides[side].lanes[device].get(queue)});
  let y = top;
  sides.forEach((side, i) => { add(y, size.thick, 'compute', side, true); y += size.thick + (i + 1 < sides.length ? size.ribbon : 0); });
  const row = {y: top, device, thickEnd: y, tags: []};
  const used = strategy.queues.filter(q => q !== 'compute' && sides.some(s => strategy.sides[s].lanes[device].has(q)));
  if (state.comm && used.length) {
    y += 5;
    for (const queue of used) {
      row.tags.push({y: y + sides.length * size.thin / 2, text: queue.replaceAll('_', ' ')});
      for (const side of sides) { add(y, size.thin - 1, queue, side, false); y += size.thin; }
      y += 3;
    }
  }
  row.height = y - top;
  rows.push(row);
  return y;
}

const plotLeft = () => LABEL, plotRight = () => state.width - RIGHT;
const xOf = t => plotLeft() + (t - state.from) / (state.to - state.from) * (plotRight() - plotLeft());
const timeAt = x => state.from + (x - plotLeft()) / (plotRight() - plotLeft()) * (state.to - state.from);

// ---- drawing ----

let pen = null, queued = false;
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; draw(); });
}

function fitCanvas() {
  const ratio = window.devicePixelRatio || 1;
  state.width = canvas.parentElement.clientWidth;
  state.height = Math.min(state.total + AXIS + 4, Math.max(420, Math.round(window.innerHeight * 0.82)));
  canvas.style.height = state.height + 'px';
  const width = Math.round(state.width * ratio), height = Math.round(state.height * ratio);
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  state.scroll = Math.max(0, Math.min(state.scroll, state.total + AXIS + 4 - state.height));
}

function draw() {
  fitCanvas();
  pen.fillStyle = theme.card;
  pen.fillRect(0, 0, state.width, state.height);
  const hatch = pen.createPattern(theme.tile, 'repeat');
  pen.save();
  pen.beginPath(); pen.rect(0, AXIS, state.width, state.height - AXIS); pen.clip();
  pen.translate(0, AXIS - state.scroll);
  for (const row of rows) if (onScreen(row.y, row.height)) drawRowText(row, hatch);
  pen.beginPath(); pen.rect(plotLeft(), state.scroll, plotRight() - plotLeft(), state.height); pen.clip();
  drawGrid();
  for (const lane of lanes) if (onScreen(lane.y, lane.height)) drawLane(lane, hatch);
  if (strategy.joined && state.view === 'both') drawRibbons();
  drawStepEnds(true);
  drawHover();
  pen.restore();
  drawAxis();
  if (state.total + AXIS + 4 > state.height + 1) drawScrollbar();
}

function onScreen(y, height) { return y + height >= state.scroll && y <= state.scroll + state.height - AXIS; }

function write(text, x, y, options = {}) {
  pen.font = `${options.bold ? '600 ' : ''}${options.size || 12}px ${FONT}`;
  pen.fillStyle = options.color || theme.text;
  pen.textAlign = options.align || 'left';
  pen.textBaseline = options.base || 'middle';
  pen.fillText(text, x, y, options.width);
}

function drawRowText(row, hatch) {
  if (row.heading) {
    pen.fillStyle = theme.lane; pen.fillRect(0, row.y, state.width, row.height - 3);
    write(row.heading, 12, row.y + row.height / 2 - 1, {bold: true, size: 11.5});
    const width = pen.measureText(row.heading).width;
    write(row.detail, 20 + width, row.y + row.height / 2 - 1, {color: theme.soft, size: 12});
    return;
  }
  const info = strategy.devices[row.device];
  write(info.name, 12, row.y + 11, {bold: true, size: 13, width: 110});
  if (info.used && row.height > 40) {
    const text = info.capacity ? `${gib(info.used)} / ${gib(info.capacity)} GiB` : `${gib(info.used)} GiB`;
    write(text, 12, row.y + 29, {color: theme.soft, size: 11, width: 110});
  }
  for (const lane of lanes) {
    if (lane.device !== row.device || !lane.thick) continue;
    write(SIDE_NAME[lane.side], LABEL - 8, lane.y + lane.height / 2, {align: 'right', size: 11.5, color: theme.soft, bold: lane.side === 'executed'});
    drawBusy(lane, hatch);
  }
  for (const tag of row.tags) write(tag.text, LABEL - 8, tag.y, {align: 'right', size: 10.5, color: theme.soft});
}

// Computing, then bubbles (hatched), then what lies before the first and after the last span.
function drawBusy(lane, hatch) {
  const share = lane.lane ? lane.lane.busy / strategy.sides[lane.side].step : 0;
  const x = plotRight() + 10, y = lane.y + lane.height / 2 - 4;
  pen.fillStyle = theme.lane; pen.fillRect(x, y, 52, 8);
  pen.fillStyle = theme.compute; pen.globalAlpha = lane.side === 'executed' ? 1 : 0.55;
  pen.fillRect(x, y, 52 * Math.min(1, share), 8);
  pen.globalAlpha = 1;
  const idle = lane.lane ? lane.lane.gaps.reduce((sum, gap) => sum + gap[1] - gap[0], 0) / strategy.sides[lane.side].step : 0;
  pen.fillStyle = hatch; pen.fillRect(x + 52 * share, y, 52 * idle, 8);
  write(percent(share, 0), state.width - 52, y + 4, {align: 'right', size: 12, bold: lane.side === 'executed'});
  write(percent(idle, 0), state.width - 12, y + 4, {align: 'right', size: 12, color: theme.soft});
}

function drawGrid() {
  pen.strokeStyle = theme.line; pen.lineWidth = 1; pen.globalAlpha = 0.7;
  pen.beginPath();
  for (const tick of ticks()) { const x = Math.round(xOf(tick)) + 0.5; pen.moveTo(x, 0); pen.lineTo(x, state.total); }
  pen.stroke();
  pen.globalAlpha = 1;
}

function firstVisible(lane) {  // first span that ends after the left edge; lanes are sorted by start
  let low = 0, high = lane.start.length;
  while (low < high) { const mid = (low + high) >> 1; if (lane.end[mid] < state.from) low = mid + 1; else high = mid; }
  return low;
}

function drawLane(row, hatch) {
  const {y, height, lane} = row;
  pen.fillStyle = theme.lane;
  pen.globalAlpha = row.thick ? 1 : 0.75;
  pen.fillRect(plotLeft(), y, plotRight() - plotLeft(), height);
  pen.globalAlpha = 1;
  if (!lane) return;
  if (row.thick) drawGaps(row, hatch);
  const ops = strategy.sides[row.side].ops;
  let drawn = -1;
  for (let i = firstVisible(lane); i < lane.start.length && lane.start[i] <= state.to; ++i) {
    const x0 = xOf(lane.start[i]), x1 = xOf(lane.end[i]);
    if (x1 - x0 < 0.8 && x1 < drawn + 0.5) continue;  // many spans in one pixel: the first stands for them
    const style = styleOf(ops[lane.op[i]]);
    pen.fillStyle = style.fill;
    const width = Math.max(0.8, x1 - x0 > 3 ? x1 - x0 - 0.8 : x1 - x0);
    pen.fillRect(x0, y, width, height);
    drawn = x0 + width;
    if (row.thick && x1 - x0 > 9) drawSpanText(ops[lane.op[i]], row.device, style.ink, x0, x1, y + height / 2);
  }
}

function drawSpanText(op, device, ink, x0, x1, y) {
  const left = Math.max(x0, plotLeft()), right = Math.min(x1, plotRight());
  const usual = strategy.typical.get(typicalKey(strategy, device, op)) / (state.to - state.from) * (plotRight() - plotLeft());
  const kind = data.kinds[op[0]], phase = op[1] ? ' ' + op[1] : '';
  const layer = op[2] >= 0 ? ` layer ${op[2]}` : '', batch = op[3] >= 0 ? ` \u00b7 mb ${op[3]}` : '';
  const texts = [kind + phase + layer + batch, op[3] >= 0 ? `L${op[2]} \u00b7 ${op[3]}` : kind, op[3] >= 0 ? String(op[3]) : ''];
  if (op[2] < 0) texts[1] = op[3] >= 0 ? `${kind} ${op[3]}` : kind;
  pen.font = `12px ${FONT}`;
  const text = texts.find(t => { const width = pen.measureText(t).width; return width + 6 <= usual && width + 3 <= right - left; });
  if (text) write(text, (left + right) / 2, y + 0.5, {color: ink, align: 'center', size: 12});
}

function drawGaps(row, hatch) {
  const step = strategy.sides[row.side].step;
  for (const [start, end] of row.lane.gaps) {
    if (end < state.from || start > state.to) continue;
    const x0 = Math.max(xOf(start), plotLeft()), x1 = Math.min(xOf(end), plotRight());
    if (x1 - x0 < 0.7) continue;
    pen.fillStyle = hatch;
    pen.fillRect(x0, row.y, x1 - x0, row.height);
    pen.font = `10.5px ${FONT}`;
    const texts = [percent((end - start) / step), percent((end - start) / step, 0)];
    const text = texts.find(t => pen.measureText(t).width + 2 <= x1 - x0);
    if (!text || text === '0 %') continue;
    const width = pen.measureText(text).width;
    pen.fillStyle = theme.gap;
    pen.fillRect((x0 + x1 - width) / 2 - 1, row.y + row.height / 2 - 7, width + 2, 14);
    write(text, (x0 + x1) / 2, row.y + row.height / 2 + 0.5, {align: 'center', size: 10.5, color: theme.soft});
  }
}

// A ribbon joins the predicted and the measured span of one op on one device: upright = on time.
function drawRibbons() {
  for (const upper of lanes) {
    if (!upper.thick || upper.side !== 'simulated' || !upper.lane || !onScreen(upper.y, 3 * upper.height)) continue;
    const lower = lanes.find(l => l.thick && l.device === upper.device && l.side === 'executed');
    const y0 = upper.y + upper.height, y1 = lower.y;
    const edges = [];
    let drawn = -1;
    pen.globalAlpha = 0.45;
    for (let i = 0; i < upper.lane.start.length; ++i) {
      const span = strategy.sides.executed.at.get(upper.lane.op[i] * strategy.devices.length + upper.device);
      if (!span) continue;
      const a0 = xOf(upper.lane.start[i]), a1 = xOf(upper.lane.end[i]), b0 = xOf(span[0]), b1 = xOf(span[1]);
      if (Math.max(a1, b1) < plotLeft() || Math.min(a0, b0) > plotRight()) continue;
      if (a1 - a0 < 0.8 && a1 < drawn + 0.5) continue;
      pen.fillStyle = styleOf(strategy.sides.simulated.ops[upper.lane.op[i]]).fill;
      pen.beginPath(); pen.moveTo(a0, y0); pen.lineTo(a1, y0); pen.lineTo(b1, y1); pen.lineTo(b0, y1); pen.fill();
      if (a1 - a0 > 5) edges.push([a0, b0], [a1, b1]);
      drawn = a1;
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = theme.card; pen.lineWidth = 1.2;
    pen.beginPath();
    for (const [a, b] of edges) { pen.moveTo(a - 0.4, y0); pen.lineTo(b - 0.4, y1); }
    pen.stroke();
  }
}

function ticks() {
  const wanted = Math.max(2, (plotRight() - plotLeft()) / 110), raw = (state.to - state.from) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw)), step = power * [1, 2, 5, 10].find(d => d * power >= raw * 0.999);
  const list = [];
  for (let k = Math.ceil(state.from / step); k * step <= state.to; ++k) list.push(k * step);
  list.step = step;
  return list;
}

function tickText(t, step) {
  const [size, name] = step >= 5e8 ? [1e9, 's'] : step >= 5e5 ? [1e6, 'ms'] : step >= 5e2 ? [1e3, '\u00b5s'] : [1, 'ns'];
  return (t / size).toFixed(Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9))) + ' ' + name;
}

function drawAxis() {
  pen.fillStyle = theme.card; pen.fillRect(0, 0, state.width, AXIS);
  pen.strokeStyle = theme.line; pen.lineWidth = 1;
  pen.beginPath(); pen.moveTo(0, AXIS - 0.5); pen.lineTo(state.width, AXIS - 0.5); pen.stroke();
  write('device', 12, AXIS - 12, {color: theme.soft, size: 11.5});
  write('computing', state.width - 52, AXIS - 12, {color: theme.soft, size: 11.5, align: 'right'});
  write('idle', state.width - 12, AXIS - 12, {color: theme.soft, size: 11.5, align: 'right'});
  const list = ticks();
  for (const tick of list) {
    const x = xOf(tick);
    if (x < plotLeft() - 1 || x > plotRight() - 20) continue;
    write(tickText(tick, list.step), x, AXIS - 12, {color: theme.soft, size: 11.5, align: x < plotLeft() + 15 ? 'left' : 'center'});
  }
  drawStepEnds(false);
}

// Where the step ends on each side: lines through the lanes, flags above them.
function stepEnds() {
  return visibleSides().map(name => ({name, t: strategy.sides[name].step})).sort((a, b) => a.t - b.t);
}

function drawStepEnds(isLine) {
  for (const end of stepEnds()) {
    const x = xOf(end.t);
    if (x < plotLeft() || x > plotRight() + 1) continue;
    pen.strokeStyle = theme.ink; pen.lineWidth = 1.4;
    pen.setLineDash(end.name === 'simulated' ? [5, 4] : []);
    pen.beginPath(); pen.moveTo(x, isLine ? 0 : 20); pen.lineTo(x, isLine ? state.total : AXIS); pen.stroke();
    pen.setLineDash([]);
  }
  if (!isLine) drawFlags();
}

function flagText(end) {
  const predicted = strategy.sides.simulated, text = `${SIDE_NAME[end.name]} ${timeText(end.t)}`;
  if (end.name === 'simulated' || !predicted) return text;
  const error = end.t / predicted.step - 1;
  return `${text} (${error < 0 ? '\u2212' : '+'}${percent(Math.abs(error))})`;
}

// From right to left, each flag ending where the one to its right begins.
function drawFlags() {
  let limit = state.width - 12;
  for (const end of stepEnds().reverse()) {
    const x = xOf(end.t);
    if (x < plotLeft() || x > plotRight() + 1) continue;
    const bold = end.name === 'executed', text = flagText(end);
    pen.font = `${bold ? '600 ' : ''}12px ${FONT}`;
    const width = pen.measureText(text).width, right = Math.min(x + width / 2, limit);
    write(text, right, 11, {align: 'right', size: 12, bold});
    limit = right - width - 16;
  }
}

function drawHover() {
  const hover = state.hover;
  if (!hover) return;
  for (const row of lanes) {
    if (!row.lane || !onScreen(row.y, row.height)) continue;
    if (hover.gap && row !== hover.row) continue;
    if (!hover.gap && row.side !== hover.row.side && !strategy.joined) continue;
    const span = hover.gap || strategy.sides[row.side].at.get(hover.op * strategy.devices.length + row.device);
    if (!span || !hover.gap && strategy.sides[row.side].ops[hover.op] && data.queues[strategy.sides[row.side].ops[hover.op][4]] !== row.queue) continue;
    pen.strokeStyle = theme.ink; pen.lineWidth = 2;
    pen.strokeRect(xOf(span[0]), row.y - 0.5, Math.max(2, xOf(span[1]) - xOf(span[0]) - 0.8), row.height + 1);
  }
}

function drawScrollbar() {
  const view = state.height - AXIS, x = state.width - 5;
  pen.fillStyle = theme.hatch;
  pen.fillRect(x, AXIS + view * state.scroll / state.total, 4, Math.max(20, view * view / state.total));
}

// ---- pointing ----

function laneAt(x, y) {
  if (x < plotLeft() || x > plotRight() || y < AXIS) return null;
  const inside = y - AXIS + state.scroll;
  return lanes.find(l => l.lane && inside >= l.y - 1 && inside <= l.y + l.height + 1) || null;
}

function hitAt(x, y) {
  const row = laneAt(x, y);
  if (!row) return null;
  const t = timeAt(x), slack = 2 * (timeAt(x + 1) - t), lane = row.lane;
  let best = null, distance = slack;
  for (let i = Math.max(0, firstVisible(lane) - 1); i < lane.start.length && lane.start[i] <= t + slack; ++i) {
    const away = Math.max(lane.start[i] - t, t - lane.end[i], 0);
    if (away < distance || away === 0) { best = i; distance = away; }
  }
  if (best !== null) return {row, op: lane.op[best]};
  const gap = row.thick && lane.gaps.find(g => g[0] <= t && t <= g[1]);
  return gap ? {row, gap, op: lane.op[gap[2]]} : null;
}

function showTip(event, hit) {
  const tip = byId('tip');
  tip.hidden = !hit;
  if (!hit) return;
  tip.replaceChildren(...(hit.gap ? gapTip(hit) : spanTip(hit)));
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 16 + box.width > window.innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
  const y = Math.min(event.clientY + 14, window.innerHeight - box.height - 8);
  tip.style.left = Math.max(4, x) + 'px';
  tip.style.top = Math.max(4, y) + 'px';
}

function tipTitle(text, color) {
  const title = element('b', 'title');
  const box = element('i'); box.style.background = color;
  title.append(box, text);
  return title;
}

function gapTip(hit) {
  const side = strategy.sides[hit.row.side], [start, end] = hit.gap;
  return [
    tipTitle(`idle for ${timeText(end - start)}`, theme.hatch),
    element('p', '', `${percent((end - start) / side.step, 2)} of the ${SIDE_NAME[hit.row.side]} step, ${strategy.devices[hit.row.device].name}`),
    element('p', '', `from ${timeText(start, 5)} to ${timeText(end, 5)}`),
    element('p', '', `then: ${opTitle(side.ops[hit.op])}`),
  ];
}

function spanTip(hit) {
  const op = strategy.sides[hit.row.side].ops[hit.op];
  const parts = [tipTitle(opTitle(op), styleOf(op).fill),
    element('p', '', `${strategy.devices[hit.row.device].name}, ${data.queues[op[4]].replaceAll('_', ' ')} lane, op ${hit.op}`)];
  const table = element('table'), head = element('tr');
  for (const text of ['', 'start', 'end', 'duration']) head.append(element('th', '', text));
  table.append(head);
  const names = strategy.joined ? strategy.names : [hit.row.side], found = {};
  for (const name of names) {
    const span = strategy.sides[name].at.get(hit.op * strategy.devices.length + hit.row.device);
    if (!span) continue;
    found[name] = span;
    const line = element('tr');
    for (const text of [SIDE_NAME[name], timeText(span[0], 4), timeText(span[1], 4), timeText(span[1] - span[0], 4)]) line.append(element('td', '', text));
    table.append(line);
  }
  if (found.simulated && found.executed) table.append(differenceRow(found.simulated, found.executed));
  return [...parts, table];
}

function differenceRow(predicted, measured) {
  const line = element('tr'), length = predicted[1] - predicted[0];
  line.append(element('td', '', 'difference'));
  const values = [measured[0] - predicted[0], measured[1] - predicted[1], measured[1] - measured[0] - length];
  values.forEach((value, i) => {
    const share = i === 2 && length > 0 ? ` (${value < 0 ? '\u2212' : '+'}${percent(Math.abs(value) / length)})` : '';
    const text = (value < 0 ? '\u2212' : '+') + timeText(Math.abs(value), 3) + share;
    line.append(element('td', value > 0 ? 'late' : 'early', text));
  });
  return line;
}

// ---- moving ----

function setWindow(from, to) {
  const whole = strategy.end * 1.015, length = Math.max(Math.min(to - from, whole), whole * 1e-6);
  state.from = Math.max(0, Math.min(from, whole - length));
  state.to = state.from + length;
  redraw();
}
function zoom(factor, center) { setWindow(center - (center - state.from) * factor, center + (state.to - center) * factor); }
function zoomMiddle(factor) { zoom(factor, (state.from + state.to) / 2); }
function pan(share) { const by = (state.to - state.from) * share; setWindow(state.from + by, state.to + by); }
function showAll() { setWindow(0, strategy.end * 1.015); }
const isWhole = () => state.to - state.from >= strategy.end * 1.0149;

function scrollRows(event) {
  const before = state.scroll, most = Math.max(0, state.total + AXIS + 4 - state.height);
  state.scroll = Math.max(0, Math.min(most, before + event.deltaY));
  if (state.scroll === before) return;  // nothing left: the page scrolls
  event.preventDefault();
  redraw();
}

function addPointer() {
  const place = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  let drag = null;
  canvas.addEventListener('wheel', event => {
    const [x] = place(event);
    // Beside the lanes, and when there is nothing left to zoom out of, the wheel scrolls as everywhere.
    if (x < plotLeft() || x > plotRight()) return scrollRows(event);
    if (!event.shiftKey && event.deltaY > 0 && isWhole()) return;
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 900);
    else zoom(Math.exp(Math.max(-150, Math.min(150, event.deltaY)) * 0.002), timeAt(x));
  }, {passive: false});
  canvas.addEventListener('pointerdown', event => {
    drag = {x: event.clientX, y: event.clientY, from: state.from, to: state.to, scroll: state.scroll};
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add('dragging');
  });
  const stop = () => { drag = null; canvas.classList.remove('dragging'); };
  canvas.addEventListener('pointerup', stop);
  canvas.addEventListener('pointercancel', stop);
  canvas.addEventListener('pointermove', event => {
    if (drag) {
      const by = (drag.x - event.clientX) / (plotRight() - plotLeft()) * (drag.to - drag.from);
      state.scroll = drag.scroll + drag.y - event.clientY;
      setWindow(drag.from + by, drag.to + by);
      return showTip(event, null);
    }
    state.hover = hitAt(...place(event));
    showTip(event, state.hover);
    redraw();
  });
  canvas.addEventListener('pointerleave', event => { state.hover = null; showTip(event, null); redraw(); });
  canvas.addEventListener('dblclick', showAll);
}

function addKeys() {
  const actions = {ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), '+': () => zoomMiddle(0.7), '=': () => zoomMiddle(0.7), '-': () => zoomMiddle(1 / 0.7),
    ArrowUp: () => { state.scroll -= 60; redraw(); }, ArrowDown: () => { state.scroll += 60; redraw(); }, Home: showAll};
  canvas.addEventListener('keydown', event => {
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  });
}

// ---- controls and the text around the picture ----

function fillChoice(box, entries, current, choose) {
  box.replaceChildren(...entries.map(([value, text]) => {
    const button = element('button', '', text);
    button.setAttribute('aria-pressed', String(value === current));
    button.addEventListener('click', () => choose(value));
    return button;
  }));
}

function drawLegend() {
  const used = new Map();
  for (const name of strategy.names) for (const op of strategy.sides[name].ops) {
    const kind = data.kinds[op[0]];
    if (!used.has(kind)) used.set(kind, new Set());
    used.get(kind).add(op[1]);
  }
  const known = Object.keys(HUES), entries = [...used.keys()].sort((a, b) => known.indexOf(a) - known.indexOf(b));
  const legend = byId('legend');
  legend.replaceChildren(...entries.map(kind => {
    const item = element('span');
    const phases = ['F', 'R', 'B', ''].filter(phase => used.get(kind).has(phase));
    const fills = [...new Set(phases.map(phase => colorOf(kind, phase)))];
    for (const fill of fills) { const box = element('i'); box.style.background = fill; item.append(box); }
    item.append(kind + (fills.length > 1 ? ' ' + phases.map(p => PHASES[p] || p).join(' / ') : ''));
    return item;
  }));
  const idle = element('span'), box = element('i');
  box.style.background = `url(${theme.tile.toDataURL()})`; box.style.border = '1px solid ' + theme.hatch;
  idle.append(box, 'idle (a bubble), with its share of the step');
  legend.append(idle);
}

function describeHow() {
  const how = byId('how'), bold = text => element('b', '', text);
  const parts = ['Time runs from left to right. Each device has a thick lane for its computing and thin lanes for its transfers; numbers in the spans are microbatches (\u201cL3\u00a0\u00b7\u00a00\u201d: layer 3, microbatch 0). '];
  if (strategy.names.length === 2) {
    parts.push('The upper lane of each pair is ', bold('predicted'), ` (${strategy.sides.simulated.source}), the lower one `, bold('measured'), ` (${strategy.sides.executed.source}). `);
    parts.push(strategy.joined ? 'Ribbons between them join the same op: upright means on time, slanted means earlier or later than predicted.'
      : 'They come from different schedules, so their ops are not joined.');
  } else {
    parts.push('Times are ', bold(SIDE_NAME[strategy.names[0]]), ` (${strategy.sides[strategy.names[0]].source}).`);
  }
  how.replaceChildren(...parts);
}

function stepOf(raw, side) { return raw.steps[side] === null ? null : raw.steps[side] * 1e9; }

function headline() {
  const raw = strategy.raw, predicted = stepOf(raw, 'simulated'), measured = stepOf(raw, 'executed');
  const bold = text => element('b', '', text), parts = [bold(raw.name), ': '];
  if (predicted) parts.push(`one step predicted to take `, bold(timeText(predicted)));
  if (measured) parts.push(predicted ? ', measured ' : 'one step takes ', bold(timeText(measured)));
  if (predicted && measured) parts.push(` (${percent(Math.abs(measured / predicted - 1))} ${measured < predicted ? 'faster' : 'slower'} than predicted)`);
  const side = measured ? 'executed' : 'simulated', own = measured || predicted;
  const rivals = data.strategies.filter(s => s !== raw && s.steps[side] !== null).sort((a, b) => a.steps[side] - b.steps[side]);
  if (own && rivals.length) {
    const best = rivals[0], factor = stepOf(best, side) / own;
    parts.push('. ', bold(`${(factor >= 1 ? factor : 1 / factor).toFixed(2)}\u00d7 ${factor >= 1 ? 'faster' : 'slower'}`), ` than ${best.name}, the ${factor >= 1 ? 'next best' : 'best'} strategy (${SIDE_NAME[side]})`);
  }
  byId('headline').replaceChildren(...parts, '.');
}

function stack(use) {
  const bar = element('div', 'stack');
  const add = (kind, text, share) => {
    if (share < 0.0005) return;
    const label = share < 0.035 ? '' : share < 0.035 + text.length * 0.007 ? percent(share, 0) : `${text} ${percent(share, 0)}`;
    const part = element('div', kind + (label ? '' : ' narrow'), label);
    part.style.width = 100 * share + '%';
    part.title = `${text}: ${percent(share, 2)} of the step`;
    bar.append(part);
  };
  add('computing', 'computing', use.computing);
  add('transferring', 'waiting for transfers', use.transferring);
  for (const [label, share] of use.waiting) add('waiting', `waiting for ${label}`, share);
  add('overhead', 'other', use.overhead);
  add('finished', 'finished', use.finished);
  return bar;
}

const STACK_PARTS = [['computing', 'computing'], ['transferring', 'waiting for transfers'], ['waiting', 'waiting for other devices to finish'],
  ['overhead', 'other gaps'], ['finished', 'done with the step']];
function stackLegend() {
  const legend = element('div', 'legend');
  for (const [kind, text] of STACK_PARTS) {
    const item = element('span'), box = element('i', 'part ' + kind);
    item.append(box, text);
    legend.append(item);
  }
  return legend;
}

function drawWaits() {
  const box = element('div', 'waits'), reference = strategy.sides.executed || strategy.sides.simulated;
  reference.uses.forEach(use => {
    strategy.names.forEach((name, i) => {
      const mine = strategy.sides[name].uses.find(other => other.label === use.label);
      if (!mine) return;
      const first = i === 0 ? ' first' : '';
      box.append(element('div', 'group' + first, i === 0 ? `${use.label} (${use.devices})` : ''), element('div', 'which' + first, SIDE_NAME[name]));
      const bar = stack(mine);
      if (first) bar.classList.add('first');
      box.append(bar);
    });
  });
  const waits = reference.uses.flatMap(use => use.waiting.map(([label, share]) => ({who: use.label, whom: label, share}))).sort((a, b) => b.share - a.share);
  const verdict = element('p', 'verdict');
  if (waits.length && waits[0].share >= 0.005) {
    verdict.append('Longest wait: ', element('b', '', waits[0].who), ` devices spend ${percent(waits[0].share)} of the step idle until `, element('b', '', waits[0].whom), waits[0].who === waits[0].whom ? ' devices (their peers) are done.' : ' devices are done.');
  } else {
    verdict.append('No group waits for another for more than 0.5 % of the step.');
  }
  byId('waits').replaceChildren(stackLegend(), box, verdict);
}

function relayOut() {
  layOut();
  const views = strategy.names.length < 2 ? [] : [['both', 'predicted above measured'], ['simulated', 'predicted'], ['executed', 'measured']];
  fillChoice(byId('views'), views, state.view, value => { state.view = value; relayOut(); });
  byId('comm').checked = state.comm;
  state.hover = null;
  redraw();
}

function select(index) {
  state.index = index;
  strategy = strategyAt(index);
  if (strategy.names.length < 2) state.view = 'both';
  state.comm = strategy.devices.length <= 24;
  state.scroll = 0;
  const entries = shown.map(i => [i, data.strategies[i].name]);
  fillChoice(byId('strategies'), entries.length > 1 ? entries : [], index, select);
  for (const row of document.querySelectorAll('tr[data-row]')) row.classList.toggle('selected', Number(row.dataset.row) === index);
  drawLegend(); describeHow(); headline(); drawWaits(); relayOut(); showAll();
}

function selectFromAddress() {
  const name = decodeURIComponent(location.hash.slice(1));
  const index = shown.find(i => data.strategies[i].name === name);
  select(index === undefined ? shown[0] : index);
}

readTheme();
addPointer();
addKeys();
byId('comm').addEventListener('change', event => { state.comm = event.target.checked; relayOut(); });
byId('zoom-in').addEventListener('click', () => zoomMiddle(0.6));
byId('zoom-out').addEventListener('click', () => zoomMiddle(1 / 0.6));
byId('zoom-all').addEventListener('click', showAll);
for (const row of document.querySelectorAll('tr[data-row]')) row.addEventListener('click', () => select(Number(row.dataset.row)));
window.addEventListener('resize', redraw);
window.addEventListener('hashchange', selectFromAddress);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readTheme(); drawLegend(); redraw(); });
selectFromAddress();
})();
)js";

}  // namespace hetermoe
