// The report's script, second of three parts: what is shown, where it lies, and how it is drawn.

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
      rows.push({y, height: 24, heading: (ROLE_NAME[info.role] || info.role).toUpperCase(), detail: `${info.of_group} \u00d7 ${info.type}`});
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
  write(info.count > 1 ? `${info.count} \u00d7 as ${info.name}` : info.name, 12, row.y + 11, {bold: true, size: 13, width: 110});
  if (info.used && row.height > 40) {
    const text = info.capacity ? `${memorySize(info.used)} / ${memorySize(info.capacity)}` : memorySize(info.used);
    write(text, 12, row.y + 29, {color: theme.soft, size: 11, width: 110});
  }
  for (const lane of lanes) {
    if (lane.device !== row.device || !lane.thick) continue;
    write(sideName(lane.side), LABEL - 8, lane.y + lane.height / 2, {align: 'right', size: 11.5, color: theme.soft, bold: lane.side === 'executed'});
    drawBusy(lane, hatch);
  }
  for (const tag of row.tags) write(tag.text, LABEL - 8, tag.y, {align: 'right', size: 10.5, color: theme.soft});
}

// Computing, then bubbles (hatched), then what lies before the first and after the last span.
function drawBusy(lane, hatch) {
  const share = lane.lane ? lane.lane.busy / strategy.sides[lane.side].end : 0;
  const x = plotRight() + 10, y = lane.y + lane.height / 2 - 4;
  pen.fillStyle = theme.lane; pen.fillRect(x, y, 52, 8);
  pen.fillStyle = theme.compute; pen.globalAlpha = lane.side === 'executed' ? 1 : 0.55;
  pen.fillRect(x, y, 52 * Math.min(1, share), 8);
  pen.globalAlpha = 1;
  const idle = lane.lane ? lane.lane.gaps.reduce((sum, gap) => sum + gap[1] - gap[0], 0) / strategy.sides[lane.side].end : 0;
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

const NARROW = 2;  // pixels below which a span is no rectangle of its own

// Of spans that are too narrow to be seen: the share of each pixel's time that each colour has. Map(fill -> [share])
function pixelShares(lane, ops) {
  const pixels = Math.ceil(plotRight() - plotLeft()), shares = new Map();
  for (let i = firstVisible(lane); i < lane.start.length && lane.start[i] <= state.to; ++i) {
    const x0 = xOf(lane.start[i]) - plotLeft(), x1 = xOf(lane.end[i]) - plotLeft();
    if (x1 - x0 >= NARROW) continue;
    const fill = styleOf(ops[lane.op[i]]).fill;
    if (!shares.has(fill)) shares.set(fill, new Float64Array(pixels));
    const of = shares.get(fill);
    for (let pixel = Math.max(0, Math.floor(x0)); pixel < pixels && pixel < x1; ++pixel) {
      of[pixel] += Math.min(x1, pixel + 1) - Math.max(x0, pixel);
    }
  }
  return shares;
}

// From below: the height of a colour in a pixel is its share of the time there; what is left is idle.
function drawPixels({y, height}, shares) {
  const fills = [...shares.keys()].sort(), pixels = fills.length ? shares.get(fills[0]).length : 0;
  const base = new Float64Array(pixels);
  for (const fill of fills) {
    const of = shares.get(fill);
    pen.fillStyle = fill;
    for (let pixel = 0; pixel < pixels; ++pixel) {
      if (of[pixel] <= 0) continue;
      const high = Math.min(of[pixel], 1 - base[pixel]) * height;
      pen.fillRect(plotLeft() + pixel, y + height * (1 - base[pixel]) - high, 1, high);
      base[pixel] += of[pixel];
    }
  }
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
  drawPixels(row, pixelShares(lane, ops));
  for (let i = firstVisible(lane); i < lane.start.length && lane.start[i] <= state.to; ++i) {
    const x0 = xOf(lane.start[i]), x1 = xOf(lane.end[i]);
    if (x1 - x0 < NARROW) continue;  // drawPixels has it
    const style = styleOf(ops[lane.op[i]]);
    pen.fillStyle = style.fill;
    pen.fillRect(x0, y, x1 - x0 > 3 ? x1 - x0 - 0.8 : x1 - x0, height);
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
  const all = strategy.sides[row.side].end;
  for (const [start, end] of row.lane.gaps) {
    if (end < state.from || start > state.to) continue;
    const x0 = Math.max(xOf(start), plotLeft()), x1 = Math.min(xOf(end), plotRight());
    if (x1 - x0 < 0.7) continue;
    pen.fillStyle = hatch;
    pen.fillRect(x0, row.y, x1 - x0, row.height);
    pen.font = `10.5px ${FONT}`;
    const texts = [percent((end - start) / all), percent((end - start) / all, 0)];
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
  const predicted = strategy.sides.simulated, text = `${sideName(end.name)} ${timeText(end.t)}`;
  if (end.name === 'simulated' || !predicted || strategy.raw.elsewhere) return text;
  if (!strategy.raw.kept_pace) return text + ' (lost its pace)';
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
