// Tests of the functions of the report's script that compute something. Run by tests/page_script_test.py with node's own
// test runner. The script is evaluated as the page does it, over a document without a canvas: nothing is drawn.
import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {test} from 'node:test';
import vm from 'node:vm';

const folder = process.env.PAGE_FOLDER;
const parts = ['page_data.js', 'page_picture.js', 'page_controls.js'];
const names = ['readSide', 'finishLane', 'readStrategy', 'queueRank', 'digits', 'memorySize', 'timeText', 'percent', 'mix', 'colorOf', 'inkOn',
  'opTitle', 'ticks', 'tickText', 'firstVisible', 'hitAt', 'layOut', 'state', 'strategyAt', 'flagText', 'sideName'];

/// What the page holds: one device, two compute spans with a gap between them, one transfer.
function pageData() {
  const ops = [['attention', 'F', 0, 0, 0, 0], ['attention', 'F', 1, 0, 0, 0], ['dispatch', 'F', 0, 0, 1, 0]]
    .map(([, ...rest], i) => [i < 2 ? 0 : 1, ...rest]);
  const side = {source: 'simulated', step: 100e-9, ops, uses: [], longest_wait: 'Longest wait: ...', critical_path: 'Critical path: ...',
    spans: [0, 0, 0, 20, 1, 0, 50, 30, 2, 0, 20, 25]};
  const strategy = {name: 'zebra', note: '', steps: {simulated: 100e-9, executed: null}, order: [0],
    devices: [{name: 'A40#0', type: 'A40', role: 'attention', used: null, capacity: null}], simulated: side, executed: null};
  return {strategies: [strategy], kinds: ['attention', 'dispatch'], queues: ['compute', 'to_expert']};
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

test('a finished lane knows its busy time and its gaps', () => {
  const lane = {start: [5, 10, 40], end: [20, 15, 50], op: [0, 1, 2]};
  load().finishLane(lane);
  assert.equal(lane.first, 5);
  assert.equal(lane.last, 50);
  assert.equal(lane.busy, 25);  // the second span lies inside the first one and counts once
  assert.deepEqual(plain(lane.gaps), [[20, 40, 2]]);
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
  assert.equal(page.hitAt(212 + 950, y), null);
  assert.equal(page.hitAt(100, y), null);
});

test('times of a CPU in the place of GPUs are compared with no prediction', () => {
  const page = load(), end = {name: 'executed', t: 150};
  const chosen = elsewhere => page.choose({raw: {elsewhere}, sides: {simulated: {step: 100}}});
  chosen(false);
  assert.equal(page.flagText(end), 'measured 150 ns (+50.0 %)');
  chosen(true);
  assert.equal(page.flagText(end), 'on this CPU 150 ns');
  assert.equal(page.sideName('simulated'), 'predicted');
});
