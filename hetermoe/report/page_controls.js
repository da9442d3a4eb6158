// The report's script, last of three parts: pointing, moving, and the text around the picture.

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
  return gap ? {row, gap, op: lane.op[gap[2]]} : null;  // undefined: nothing comes after it
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
    element('p', '', `${percent((end - start) / side.end, 2)} of the ${sideName(hit.row.side)} step, ${strategy.devices[hit.row.device].name}`),
    element('p', '', `from ${timeText(start, 5)} to ${timeText(end, 5)}`),
    element('p', '', hit.op === undefined ? 'then: the end of the step' : `then: ${opTitle(side.ops[hit.op])}`),
  ];
}

function spanTip(hit) {
  const op = strategy.sides[hit.row.side].ops[hit.op];
  const parts = [tipTitle(opTitle(op), styleOf(op).fill),
    element('p', '', `${strategy.devices[hit.row.device].names || strategy.devices[hit.row.device].name}, ${data.queues[op[4]].replaceAll('_', ' ')} lane, op ${hit.op}`)];
  const table = element('table'), head = element('tr');
  for (const text of ['', 'start', 'end', 'duration']) head.append(element('th', '', text));
  table.append(head);
  const names = strategy.joined ? strategy.names : [hit.row.side], found = {};
  for (const name of names) {
    const span = strategy.sides[name].at.get(hit.op * strategy.devices.length + hit.row.device);
    if (!span) continue;
    found[name] = span;
    const line = element('tr');
    for (const text of [sideName(name), timeText(span[0], 4), timeText(span[1], 4), timeText(span[1] - span[0], 4)]) line.append(element('td', '', text));
    table.append(line);
  }
  if (found.simulated && found.executed && !strategy.raw.elsewhere) table.append(differenceRow(found.simulated, found.executed));
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
    if (!op) continue;  // no device that is drawn has a part in it
    const kind = data.kinds[op[0]];
    if (!used.has(kind)) used.set(kind, new Set());
    used.get(kind).add(op[1]);
  }
  const known = Object.keys(HUES), entries = [...used.keys()].sort((a, b) => known.indexOf(a) - known.indexOf(b));
  const legend = byId('legend');
  legend.replaceChildren(...entries.map(kind => {
    const item = element('span');
    const phases = ['F', 'R', 'B', 'W', ''].filter(phase => used.get(kind).has(phase));
    const fills = [...new Set(phases.map(phase => colorOf(kind, phase)))];
    for (const fill of fills) { const box = element('i'); box.style.background = fill; item.append(box); }
    item.append(kind + (fills.length > 1 ? ' ' + phases.map(p => PHASES[p] || p).join(' / ') : ''));
    return item;
  }));
  const idle = element('span'), box = element('i');
  box.style.background = `url(${theme.tile.toDataURL()})`; box.style.border = '1px solid ' + theme.hatch;
  idle.append(box, 'idle (a bubble), with its share of the step; where spans are narrower than two pixels, heights are shares of the time');
  legend.append(idle);
}

function describeHow() {
  const how = byId('how'), bold = text => element('b', '', text);
  const parts = ['Time runs from left to right. Each device has a thick lane for its computing and thin lanes for its transfers; numbers in the spans are microbatches (\u201cL3\u00a0\u00b7\u00a00\u201d: layer 3, microbatch 0). '];
  if (strategy.names.length === 2) {
    parts.push('The upper lane of each pair is ', bold('predicted'), ` (${strategy.sides.simulated.source}), the lower one `, bold(sideName('executed')), ` (${strategy.sides.executed.source}). `);
    parts.push(strategy.joined ? 'Ribbons between them join the same op: upright means on time, slanted means earlier or later than predicted.'
      : 'They come from different schedules, so their ops are not joined.');
  } else {
    parts.push('Times are ', bold(sideName(strategy.names[0])), ` (${strategy.sides[strategy.names[0]].source}).`);
  }
  parts.push(...describeDevices());
  const drawn = strategy.sides.executed, usual = stepOf(strategy.raw, 'executed');
  if (drawn && usual && Math.abs(drawn.step / usual - 1) > 0.005)
    parts.push(` The step that is drawn took ${timeText(drawn.step)}; the median of all that were measured, ${timeText(usual)}, is what is said above.`);
  how.replaceChildren(...parts);
}

// Which devices are drawn, where not each is.
function describeDevices() {
  const {raw} = strategy, alike = strategy.devices.filter(device => device.count > 1), parts = [];
  if (alike.length > 0) {
    const most = Math.max(...alike.map(device => device.alike));
    parts.push(` Devices that do the same at the same time${most > 0 ? ` (within ${percent(most, 2)} of the step)` : ''} are one row: `);
    parts.push(alike.slice(0, 2).map(device => `${device.names}`).join('; ') + (alike.length > 2 ? '; \u2026' : '') + '.');
  }
  const shownDevices = strategy.devices.reduce((sum, device) => sum + device.count, 0);
  if (shownDevices < raw.all_devices) {
    parts.push(element('b', '', ` Drawn are ${shownDevices} of ${raw.all_devices} devices`),
      ': of each type and role the busiest, the least busy, and others evenly between them. The files of the timelines have all.');
  }
  return parts;
}

function stepOf(raw, side) { return raw.steps[side] === null ? null : raw.steps[side] * 1e9; }

// Against the best of the others, by the times that the table compares; empty where there is none.
function rivalText(raw) {
  const side = raw.steps[data.basis] === null ? 'simulated' : data.basis, own = raw.steps[side];
  const rivals = data.strategies.filter(s => s.name !== raw.name && s.steps[side] !== null).sort((a, b) => a.steps[side] - b.steps[side]);
  if (own === null || rivals.length === 0) return '';
  const best = rivals[0], factor = best.steps[side] / own, which = factor >= 1 ? 'next best' : 'best';
  const speed = Math.abs(factor - 1) < 0.005 ? 'as fast as' : `${(factor >= 1 ? factor : 1 / factor).toFixed(2)}\u00d7 ${factor >= 1 ? 'faster' : 'slower'} than`;
  return `${speed} ${best.name}, the ${which} strategy (${SIDE_NAME[side]})`;
}

function headline() {
  const raw = strategy.raw, predicted = stepOf(raw, 'simulated'), measured = stepOf(raw, 'executed');
  const bold = text => element('b', '', text), parts = [bold(raw.name), ': '];
  if (predicted) parts.push(`one step predicted to take `, bold(timeText(predicted)));
  if (measured) parts.push(predicted ? `, ${sideName('executed')} ` : 'one step takes ', bold(timeText(measured)));
  if (measured && raw.elsewhere) parts.push(` (${raw.executed.source})`);
  if (predicted && measured && !raw.elsewhere) parts.push(!raw.kept_pace ? ' (the run did not keep its pace)'
    : ` (${percent(Math.abs(measured / predicted - 1))} ${measured < predicted ? 'faster' : 'slower'} than predicted)`);
  const rival = rivalText(raw);
  if (rival) parts.push('. It is ', bold(rival));
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
  add('unused', 'idle: no work in this step', use.unused);
  return bar;
}

const STACK_PARTS = [['computing', 'computing'], ['transferring', 'waiting for transfers'], ['waiting', 'waiting for other devices to finish'],
  ['overhead', 'other gaps'], ['finished', 'done with the step'], ['unused', 'without work in this step']];
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
      box.append(element('div', 'group' + first, i === 0 ? `${use.label} (${use.devices})` : ''), element('div', 'which' + first, sideName(name)));
      const bar = stack(mine);
      if (first) bar.classList.add('first');
      box.append(bar);
    });
  });
  const verdict = element('p', 'verdict');
  verdict.append(reference.longestWait, element('br'), reference.criticalPath);
  if (reference.overlap) verdict.append(element('br'), reference.overlap);
  byId('waits').replaceChildren(stackLegend(), box, verdict);
}

function relayOut() {
  layOut();
  const views = strategy.names.length < 2 ? [] : [['both', `predicted above ${sideName('executed')}`], ['simulated', 'predicted'], ['executed', sideName('executed')]];
  fillChoice(byId('views'), views, state.view, value => { state.view = value; relayOut(); });
  byId('comm').checked = state.comm;
  state.hover = null;
  redraw();
}

function select(index) {
  state.comm = data.strategies[index].devices.length <= 12;
  state.scroll = 0;
  show(index);
  showAll();
}

function show(index) {
  state.index = index;
  strategy = strategyAt(index);
  if (strategy.names.length < 2) state.view = 'both';
  const entries = shown.map(i => [i, data.strategies[i].name]);
  fillChoice(byId('strategies'), entries.length > 1 ? entries : [], index, select);
  for (const row of document.querySelectorAll('tr[data-row]')) row.classList.toggle('selected', Number(row.dataset.row) === index);
  drawLegend(); describeHow(); headline(); drawWaits(); relayOut();
}

// Other data for the page as it is: what is shown stays, and so does the part of the step, unless it was the whole.
function replaceData(next) {
  const name = data.strategies[state.index].name, whole = isWhole();
  data = next;
  cache.clear();
  styles.clear();
  shown = withTimelines();
  if (shown.length === 0) return;
  const index = shown.find(i => data.strategies[i].name === name);
  show(index === undefined ? shown[0] : index);
  if (whole) showAll(); else setWindow(state.from, state.to);
}

function selectFromAddress() {
  const name = decodeURIComponent(location.hash.slice(1));
  const index = shown.find(i => data.strategies[i].name === name);
  select(index === undefined ? shown[0] : index);
}

function start() {
  readTheme();
  addPointer();
  addKeys();
  byId('comm').addEventListener('change', event => { state.comm = event.target.checked; relayOut(); });
  byId('zoom-in').addEventListener('click', () => zoomMiddle(0.6));
  byId('zoom-out').addEventListener('click', () => zoomMiddle(1 / 0.6));
  byId('zoom-all').addEventListener('click', showAll);
  document.addEventListener('click', event => {
    const row = event.target.closest('tr[data-row]');
    if (row) select(Number(row.dataset.row));
  });
  window.addEventListener('resize', redraw);
  window.addEventListener('hashchange', selectFromAddress);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { readTheme(); drawLegend(); redraw(); });
  selectFromAddress();
}

// A page without timelines has no canvas.
if (canvas) start();
