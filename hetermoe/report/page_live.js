// The end of the script of a page that is served while the run goes on: asks the server for what is new. The parts are HTML as
// the report has it; the timelines come only when there are others than those that are shown.

const LIVE_PAUSE = 2000;  // milliseconds
const shownParts = new Map();
let seen = 0;

function showParts(parts) {
  for (const [id, html] of Object.entries(parts)) {
    if (shownParts.get(id) === html) continue;
    shownParts.set(id, html);
    byId('part-' + id).innerHTML = html;
  }
  if (window.zoomAgain) window.zoomAgain();
}

const liveTitle = document.title;

async function refresh() {
  try {
    const answer = await (await fetch('/parts?seen=' + seen)).json();
    if (answer.data && !canvas && answer.data.strategies.some(hasTimeline)) return location.reload();
    seen = answer.version;
    showParts(answer.parts);
    if (canvas && answer.data) replaceData(answer.data);
    document.title = liveTitle;
  } catch (error) {
    document.title = 'hetermoe: nobody serves this page any more';
  }
  setTimeout(refresh, LIVE_PAUSE);
}
refresh();
