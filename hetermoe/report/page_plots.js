// Curves that can be pointed at and zoomed. Plain JavaScript over the pictures of loss_svg.cpp, which are complete without it:
// their lines have data as coordinates and a transform to pixels, so a zoom is another transform and other ticks.
// A script of its own, for pages with and without timelines.

const PLOT_BLANK = 0.05;  // of the height, above and below the curves
const parsedPaths = new WeakMap();
const zoomedTo = new Map();  // title -> [low, high]: a live page replaces its pictures
let plotTip = null, plotDrag = null;

/// [[step, value], ...] of a path of "M x y" and "L x y".
function pointsOf(path) {
  return [...path.matchAll(/[ML]([^ ]+) ([^MLh]+)/g)].map(found => [Number(found[1]), Number(found[2])]);
}

function pointsOfLine(line) {
  if (!parsedPaths.has(line)) parsedPaths.set(line, pointsOf(line.getAttribute('d')));
  return parsedPaths.get(line);
}

/// The point whose step is nearest, or null. Points are sorted by step.
function nearestPoint(points, step) {
  let low = 0, high = points.length;
  while (low < high) { const mid = (low + high) >> 1; if (points[mid][0] < step) low = mid + 1; else high = mid; }
  const near = [points[low - 1], points[low]].filter(Boolean);
  near.sort((a, b) => Math.abs(a[0] - step) - Math.abs(b[0] - step));
  return near[0] || null;
}

/// Round numbers from low to high: 1, 2 or 5 times a power of ten; whole ones where `whole`.
function roundTicks(low, high, wanted, whole) {
  const raw = (high - low) / wanted;
  if (!(raw > 0) || !Number.isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = power * [1, 2, 5, 10].find(digit => digit * power >= raw * 0.999999);
  if (whole) step = Math.max(1, step);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k <= high / step + 1e-9; ++k) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

/// The least and the largest value between two steps of several lines, with a blank around; null where there is none.
function valueRange(lines, low, high) {
  let least = Infinity, most = -Infinity;
  for (const points of lines) for (const [step, value] of points) {
    if (step < low || step > high) continue;
    least = Math.min(least, value); most = Math.max(most, value);
  }
  if (least > most) return null;
  const blank = least === most ? Math.max(0.5, 0.05 * Math.abs(least)) : PLOT_BLANK * (most - least);
  return [least - blank, most + blank];
}

const numbersOf = (node, name) => node.dataset[name].split(' ').map(Number);
const linesOf = plot => [...plot.querySelectorAll('path[data-name]')];

/// What is shown: steps [low, high], values [least, most].
function shownBox(plot) { return numbersOf(plot, plot.dataset.shown ? 'shown' : 'box'); }

function svgNode(tag, attributes, text) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function showBox(plot, box) {
  const [left, right, top, bottom] = numbersOf(plot, 'frame'), [low, high, least, most] = box;
  plot.dataset.shown = box.join(' ');
  const sx = (right - left) / (high - low), sy = (bottom - top) / (most - least);
  plot.querySelector('.data').setAttribute('transform', `matrix(${sx} 0 0 ${-sy} ${-low * sx} ${most * sy})`);
  const x = step => left + (step - low) * sx, y = value => bottom - (value - least) * sy;
  plot.querySelector('.x-axis').replaceChildren(...roundTicks(low, high, 8, true).flatMap(tick => [
    svgNode('line', {x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 5, stroke: '#777'}),
    svgNode('text', {x: x(tick), y: bottom + 19, 'text-anchor': 'middle'}, String(tick))]));
  plot.querySelector('.y-axis').replaceChildren(...roundTicks(least, most, 6, false).flatMap(tick => [
    svgNode('line', {x1: left, x2: right, y1: y(tick), y2: y(tick), stroke: '#ddd'}),
    svgNode('text', {x: left - 8, y: y(tick) + 4, 'text-anchor': 'end'}, String(tick))]));
}

function zoomPlot(plot, low, high) {
  const [first, last] = numbersOf(plot, 'box');
  low = Math.max(first, low); high = Math.min(last, high);
  if (high - low < 1e-9) return;
  const range = valueRange(linesOf(plot).map(pointsOfLine), low, high);
  if (!range) return;
  zoomedTo.set(plot.getAttribute('aria-label'), [low, high]);
  showBox(plot, [low, high, ...range]);
}

function showWholePlot(plot) {
  zoomedTo.delete(plot.getAttribute('aria-label'));
  showBox(plot, numbersOf(plot, 'box'));
}

/// After pictures were replaced: those that were zoomed are again.
function zoomAgain() {
  for (const plot of document.querySelectorAll('svg[data-frame]')) {
    const range = zoomedTo.get(plot.getAttribute('aria-label'));
    if (range) zoomPlot(plot, ...range);
  }
}

/// The picture under the pointer, and the step there; null outside of the axes.
function plotAt(event) {
  const plot = event.target.closest && event.target.closest('svg[data-frame]');
  if (!plot) return null;
  const box = plot.getBoundingClientRect(), scale = plot.viewBox.baseVal.width / box.width;
  const [left, right, top, bottom] = numbersOf(plot, 'frame');
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  if (x < left || x > right || y < top || y > bottom) return null;
  const [low, high] = shownBox(plot);
  return {plot, x, step: low + (x - left) / (right - left) * (high - low)};
}

function valueText(value) { return String(Number(value.toPrecision(6))); }

/// A row for each line that has a value near: colour, name, value.
function tipRows(plot, step) {
  const near = linesOf(plot).map(line => ({line, point: nearestPoint(pointsOfLine(line), step)})).filter(found => found.point);
  if (near.length === 0) return null;
  const at = near.reduce((best, found) => Math.abs(found.point[0] - step) < Math.abs(best - step) ? found.point[0] : best, Infinity);
  return {at, rows: near.map(({line, point}) => ({color: line.getAttribute('stroke'), name: line.dataset.name, step: point[0], value: point[1]}))};
}

function fillTip(plot, found) {
  const title = document.createElement('b'), table = document.createElement('table');
  title.textContent = `${plot.dataset.x} ${found.at}`;
  for (const row of found.rows) {
    const line = table.insertRow(), box = document.createElement('i');
    box.style.background = row.color;
    line.insertCell().append(box, row.name + (row.step === found.at ? '' : ` (${plot.dataset.x} ${row.step})`));
    line.insertCell().textContent = valueText(row.value);
  }
  plotTip.replaceChildren(title, table);
}

function hideTip() {
  if (plotTip) plotTip.hidden = true;
  for (const line of document.querySelectorAll('.cursor')) line.remove();
}

function pointAtPlot(event) {
  const place = plotAt(event), found = place && tipRows(place.plot, place.step);
  hideTip();
  if (!found) return;
  const [left, right, top, bottom] = numbersOf(place.plot, 'frame'), [low, high] = shownBox(place.plot);
  const x = left + (found.at - low) / (high - low) * (right - left);
  place.plot.append(svgNode('line', {class: 'cursor', x1: x, x2: x, y1: top, y2: bottom, stroke: '#777', 'stroke-dasharray': '2 3'}));
  if (plotDrag && plotDrag.plot === place.plot) {
    const from = Math.min(plotDrag.x, place.x), width = Math.abs(plotDrag.x - place.x);
    place.plot.append(svgNode('rect', {class: 'cursor', x: from, width, y: top, height: bottom - top, fill: '#0b5cad', 'fill-opacity': 0.12}));
  }
  if (!plotTip) {
    plotTip = document.createElement('div');
    plotTip.className = 'plot-tip';
    document.body.append(plotTip);
  }
  fillTip(place.plot, found);
  plotTip.hidden = false;
  const size = plotTip.getBoundingClientRect();
  plotTip.style.left = Math.max(4, event.clientX + 18 + size.width > innerWidth ? event.clientX - size.width - 14 : event.clientX + 18) + 'px';
  plotTip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - size.height - 8)) + 'px';
}

function listenToPlots() {
  document.addEventListener('pointermove', pointAtPlot);
  document.addEventListener('pointerdown', event => {
    plotDrag = plotAt(event);
    if (plotDrag) event.preventDefault();
  });
  document.addEventListener('pointerup', event => {
    const begin = plotDrag, end = plotAt(event);
    plotDrag = null;
    if (begin && end && begin.plot === end.plot && Math.abs(begin.x - end.x) > 6)
      zoomPlot(begin.plot, Math.min(begin.step, end.step), Math.max(begin.step, end.step));
  });
  document.addEventListener('dblclick', event => { const place = plotAt(event); if (place) showWholePlot(place.plot); });
  window.zoomAgain = zoomAgain;
}

if (document.addEventListener) listenToPlots();
