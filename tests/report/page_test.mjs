// Tests of the functions of the report's script that compute something. Run by tests/page_script_test.py with node's own
// test runner. The script is evaluated as the page does it, over a document without a canvas: nothing is drawn.
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {test} from 'node:test';
import vm from 'node:vm';

const folder = process.env.PAGE_FOLDER;
const parts = ['page_data.js', 'page_picture.js', 'page_controls.js'];
const names = ['readSide', 'finishLane', 'readStrategy', 'queueRank', 'digits', 'memorySize', 'timeText', 'percent', 'mix', 'colorOf', 'inkOn',
  'opTitle', 'ticks', 'tickText', 'firstVisible', 'hitAt', 'layOut', 'state', 'strategyAt', 'flagText', 'sideName', 'pixelShares', 'rivalText'];

/// What the page holds: one device, two compute spans with a gap between them, one transfer.
function pageData() {
  const ops = [['attention', 'F', 0, 0, 0, 0], ['attention', 'F', 1, 0, 0, 0], ['dispatch', 'F', 0, 0, 1, 0]]
    .map(([, ...rest], i) => [i < 2 ? 0 : 1, ...rest]);
  const side = {source: 'simulated', step: 100e-9, ops, uses: [], longest_wait: 'Longest wait: ...', critical_path: 'Critical path: ...',
    spans: [0, 0, 0, 20, 1, 0, 50, 30, 2, 0, 20, 25]};
  const strategy = {name: 'zebra', note: '', elsewhere: false, kept_pace: true, steps: {simulated: 100e-9, replayed: null, executed: null}, order: [0],
    all_devices: 1, devices: [{name: 'A40#0', type: 'A40', role: 'attention', used: null, capacity: null, count: 1, names: '', alike: 0, of_group: 1}],
    simulated: side, executed: null};
  return {strategies: [strategy], kinds: ['attention', 'dispatch'], queues: ['compute', 'to_expert'], basis: 'simulated'};
}

/// The script's functions by name, over `data`.
function load(data = pageData()) {
  const source = parts.map(part => readFileSync(`${folder}/${part}`, 'utf8')).join('');
  const element = id => (id === 'report-data' ? {textContent: JSON.stringify(data)} : null);
  const script = `'use strict';\n(() => {\n${source}\nreturn {${names.join(', ')}, choose(s) { strategy = s; }};\n})()`;
  return vm.runInNewContext(script, {document: {getElementById: element}});
}

/// Values of another vm context have other prototypes; a detour over JSON makes them comparable.
const plain = value => JSON.parse(JSON.stringify(value));

test('a side has a lane per device and queue, sorted by time', () => {
  const page = load(), raw = pageData().strategies[0];
  const side = page.readSide(raw.simulated, raw.simulated.ops, raw.devices);
  assert.deepEqual([...side.lanes[0].keys()], ['compute', 'to_expert']);
  const compute = side.lanes[0].get('compute');
  assert.deepEqual(plain([compute.start, compute.end, compute.op]), [[0, 50], [20, 80], [0, 1]]);
  assert.deepEqual(plain(side.at.get(2)), [20, 45]);
  assert.equal(side.step, 100);
  assert.deepEqual([side.longestWait, side.criticalPath], ['Longest wait: ...', 'Critical path: ...']);
});

test('where steps overlap, shares are of one step alone', () => {
  const page = load(), raw = pageData().strategies[0];
  raw.simulated.step = 60e-9;
  const side = page.readSide(raw.simulated, raw.simulated.ops, raw.devices);
  assert.deepEqual([Math.round(side.step), side.end], [60, 80]);
  const {busy, gaps} = side.lanes[0].get('compute');
  assert.equal(busy + gaps.reduce((sum, gap) => sum + gap[1] - gap[0], 0), side.end);
});

test('a finished lane knows its busy time and its gaps', () => {
  const lane = {start: [5, 10, 40], end: [20, 15, 50], op: [0, 1, 2]};
  load().finishLane(lane, 60);
  assert.equal(lane.last, 50);
  assert.equal(lane.busy, 25);  // the second span lies inside the first one and counts once
  assert.deepEqual(plain(lane.gaps), [[0, 5, 0], [20, 40, 2], [50, 60, 3]]);
});

/// A generator of numbers from 0 to 1 that gives the same ones in every run.
function numbersFrom(seed) {
  let state = seed;
  return () => { state = (state * 1664525 + 1013904223) % 2 ** 32; return state / 2 ** 32; };
}

test('a lane is busy or idle at every time of its step', () => {
  const page = load();
  for (let seed = 0; seed < 200; ++seed) {
    const random = numbersFrom(seed), lane = {start: [], end: [], op: []}, count = Math.floor(8 * random());
    lane.start = Array.from({length: count}, () => 90 * random()).sort((a, b) => a - b);
    lane.end = lane.start.map(start => start + 10 * random());
    page.finishLane(lane, 100);
    const idle = lane.gaps.reduce((sum, gap) => sum + gap[1] - gap[0], 0);
    assert.ok(Math.abs(lane.busy + idle - 100) < 1e-9, `seed ${seed}: ${lane.busy} and ${idle}`);
  }
});

test('a device without work is idle all the step', () => {
  const raw = pageData().strategies[0];
  raw.devices.push({...raw.devices[0], name: 'A40#1', role: 'idle'});
  const side = load().readSide(raw.simulated, raw.simulated.ops, raw.devices);
  assert.deepEqual(plain(side.lanes[1].get('compute').gaps), [[0, 100, 0]]);
});

test('a pixel with many spans has the share of the time of each colour', () => {
  const data = pageData(), side = data.strategies[0].simulated, spans = [];
  side.ops = [[0, 'F', 0, 0, 0, 0], [0, 'B', 0, 0, 0, 0]];
  for (let t = 0; t < 100; ++t) spans.push(0, 0, 10 * t, 3, 1, 0, 10 * t + 3, 6);  // 30 %, 60 %, and 10 % idle
  side.spans = spans;
  side.step = 1000e-9;
  const page = load(data);
  page.choose(page.strategyAt(0));
  page.state.width = 212 + 152 + 50;  // twenty nanoseconds to a pixel
  page.state.from = 0; page.state.to = 1000;
  const shares = page.pixelShares(page.strategyAt(0).sides.simulated.lanes[0].get('compute'), side.ops);
  assert.deepEqual([...shares.keys()], [page.colorOf('attention', 'F'), page.colorOf('attention', 'B')]);
  for (const [fill, expected] of [['F', 0.3], ['B', 0.6]]) {
    for (const share of shares.get(page.colorOf('attention', fill))) assert.ok(Math.abs(share - expected) < 1e-9, `${fill} ${share}`);
  }
});

test('rivals are compared by the times that the table compares', () => {
  const data = pageData();
  data.basis = 'replayed';
  data.strategies[0].steps = {simulated: 1, replayed: 2, executed: 9};
  data.strategies.push({...data.strategies[0], name: 'ep', steps: {simulated: 5, replayed: 3, executed: 1}});
  const page = load(data);
  assert.equal(page.rivalText(data.strategies[0], data), '1.50\u00d7 faster than ep, the next best strategy (by replayed steps)');
});

test('a strategy with one timeline is shown over its step', () => {
  const strategy = load().strategyAt(0);
  assert.deepEqual(plain(strategy.names), ['simulated']);
  assert.equal(strategy.joined, false);
  assert.equal(strategy.end, 100);
  assert.deepEqual(plain(strategy.queues), ['compute', 'to_expert']);
});

test('queues that nobody knows come last', () => {
  const page = load();
  assert.equal(page.queueRank('compute'), 0);
  assert.equal(page.queueRank('to_host'), 6);
  assert.equal(page.queueRank('to_device 1'), 7);
  assert.equal(page.queueRank('to_host 1'), 8);
  assert.equal(page.queueRank('teleport'), 1000);
});

test('times have three digits and the unit that fits', () => {
  const page = load();
  assert.deepEqual([0, 7, 999.6, 1500, 2.5e6, 12.34e9].map(t => page.timeText(t)),
    ['0 ns', '7.00 ns', '1.00 \u00b5s', '1.50 \u00b5s', '2.50 ms', '12.3 s']);
  assert.equal(page.timeText(-1500), '-1.50 \u00b5s');
  assert.equal(page.timeText(123456, 5), '123.46 \u00b5s');
  assert.equal(page.percent(0.1234), '12.3 %');
  assert.equal(page.digits(0.001234, 2), '0.0012');
  assert.equal(page.memorySize(13 * 2 ** 20), '13.0 MiB');
  assert.equal(page.memorySize(48 * 2 ** 30), '48.0 GiB');
});

test('ticks are round, inside the window and about 110 pixels apart', () => {
  const page = load();
  page.state.width = 212 + 152 + 1100;  // the lanes are 1,100 pixels wide
  page.state.from = 30; page.state.to = 1030;
  const ticks = page.ticks();
  assert.equal(ticks.step, 100);
  assert.deepEqual(plain(ticks), [100, 200, 300, 400, 500, 600, 700, 800, 900, 1000]);
  page.state.to = 1130;
  assert.equal(page.ticks().step, 200);
});

test('the text of a tick has the unit and the decimals of the step', () => {
  const page = load();
  assert.equal(page.tickText(2000, 500), '2.0 \u00b5s');
  assert.equal(page.tickText(1500, 500), '1.5 \u00b5s');
  assert.equal(page.tickText(3e6, 1e6), '3 ms');
  assert.equal(page.tickText(250, 50), '250 ns');
  assert.equal(page.tickText(2e9, 1e9), '2 s');
});

test('the first visible span is the first that ends in the window', () => {
  const page = load();
  page.state.from = 45;
  assert.equal(page.firstVisible({start: [0, 20, 50], end: [20, 45, 80]}), 1);
  page.state.from = 46;
  assert.equal(page.firstVisible({start: [0, 20, 50], end: [20, 45, 80]}), 2);
  page.state.from = 90;
  assert.equal(page.firstVisible({start: [0], end: [20]}), 1);
});

test('colours: dark backward, the mean for recompute, readable text', () => {
  const page = load();
  assert.equal(page.colorOf('attention', 'F'), '#56b4e9');
  assert.equal(page.colorOf('attention', 'B'), '#0b6aa8');
  assert.equal(page.mix('#000000', '#ffff10'), '#808008');
  assert.equal(page.inkOn('#ffffff'), '#10161c');
  assert.equal(page.inkOn('#0b6aa8'), '#ffffff');
  assert.notEqual(page.colorOf('teleport', 'F'), page.colorOf('teleport', 'B'));
});

test('every kind of op has a hue of its own; both reductions share one', () => {
  const page = load();
  const table = readFileSync(`${folder}/../placement/op.h`, 'utf8');
  const kinds = [...table.matchAll(/  X\(k\w+, (\w+)\)/g)].map(found => found[1]).filter(kind => kind !== 'reduce_scatter');
  assert.ok(kinds.length > 15);
  const colours = kinds.map(kind => page.colorOf(kind, 'F'));
  assert.ok(colours.every(colour => colour.startsWith('#')), `${kinds.filter((kind, i) => !colours[i].startsWith('#'))}`);
  assert.equal(new Set(colours).size, kinds.length);
});

test('the title of an op leaves out what it does not have', () => {
  const page = load();
  assert.equal(page.opTitle([0, 'B', 3, 1, 0, 2]), 'attention backward \u00b7 layer 3 \u00b7 microbatch 1 \u00b7 group 2');
  assert.equal(page.opTitle([1, '', -1, -1, 0, 0]), 'dispatch');
});

test('pointing finds the span, or the gap between two', () => {
  const page = load();
  page.choose(page.strategyAt(0));
  page.state.width = 212 + 152 + 1000;
  page.state.from = 0; page.state.to = 100;  // ten pixels per nanosecond
  page.layOut();
  const y = 46 + 6 + 26 + 5;  // inside the first lane: below axis and heading
  assert.equal(page.hitAt(212 + 100, y).op, 0);
  assert.equal(page.hitAt(212 + 600, y).op, 1);
  assert.deepEqual(plain(page.hitAt(212 + 350, y).gap), [20, 50, 1]);
  assert.deepEqual(plain(page.hitAt(212 + 950, y)).gap, [80, 100, 2]);
  assert.equal(page.hitAt(212 + 950, y).op, undefined);
  assert.equal(page.hitAt(100, y), null);
});

test('times of a CPU in the place of GPUs are compared with no prediction', () => {
  const page = load(), end = {name: 'executed', t: 150};
  const chosen = elsewhere => page.choose({raw: {elsewhere, kept_pace: true}, sides: {simulated: {step: 100}}});
  chosen(false);
  assert.equal(page.flagText(end), 'executed 150 ns (+50.0 %)');
  chosen(true);
  assert.equal(page.flagText(end), 'on this CPU 150 ns');
  assert.equal(page.sideName('simulated'), 'predicted');
  page.choose({raw: {elsewhere: false, kept_pace: false}, sides: {simulated: {step: 100}}});
  assert.equal(page.flagText(end), 'executed 150 ns (lost its pace)');
});

/// The functions of the script of plots, by name.
function loadPlots() {
  const source = readFileSync(`${folder}/page_plots.js`, 'utf8');
  return vm.runInNewContext(`(() => {\n${source}\nreturn {pointsOf, nearestPoint, roundTicks, valueRange};\n})()`, {document: {}, WeakMap, Map});
}

test('the points of a curve are read as they were written', () => {
  assert.deepEqual(plain(loadPlots().pointsOf('M0 1.5L10 -2e-05M30 4h0')), [[0, 1.5], [10, -2e-5], [30, 4]]);
});

test('the nearest point is nearest', () => {
  const plots = loadPlots();
  for (let seed = 0; seed < 200; ++seed) {
    const random = numbersFrom(seed), points = Array.from({length: 1 + Math.floor(20 * random())}, () => [100 * random(), 0]);
    points.sort((a, b) => a[0] - b[0]);
    const step = 120 * random() - 10, found = plots.nearestPoint(points, step);
    for (const point of points) assert.ok(Math.abs(found[0] - step) <= Math.abs(point[0] - step), `seed ${seed}`);
  }
  assert.equal(plots.nearestPoint([], 3), null);
});

test('ticks of a plot are round, inside, and whole where steps are', () => {
  const plots = loadPlots();
  assert.deepEqual(plain(plots.roundTicks(0, 1e6, 8, true)).at(-1), 1e6);
  assert.deepEqual(plain(plots.roundTicks(0, 2, 8, true)), [0, 1, 2]);
  assert.deepEqual(plain(plots.roundTicks(0, 1, 5, false)), [0, 0.2, 0.4, 0.6, 0.8, 1]);
});

test('a zoom shows all values between its ends', () => {
  const plots = loadPlots(), line = [[0, 9], [1, 2], [2, 4], [3, -7]];
  assert.deepEqual(plain(plots.valueRange([line], 1, 2)), [1.9, 4.1]);
  assert.equal(plots.valueRange([line], 5, 6), null);
});
