#include "hetermoe/report/page.h"

namespace hetermoe {

// Colours of the picture come from here too (--lane, --hatch, ...): the script reads the variables, so that
// light and dark differ in this file only.
const char* const kPageStyle = R"css(
:root { color-scheme: light dark;
  --bg:#fbfbfa; --card:#ffffff; --text:#1d2329; --soft:#5d6770; --line:#d9dde1; --lane:#f1f3f4; --gap:#fdfdfd;
  --hatch:#b9c0c6; --ink:#0b0f13; --accent:#0b5cad; --label-bg:#fff3d6; --label-ink:#6a4300; --label-line:#e0b04a;
  --late:#b3261e; --early:#00695c; --compute:#33658a; --transfer:#3dae86; --wait:#d1495b; --wait2:#e39b3c; --over:#b7bdc3; --done:#e3e6e9; }
@media (prefers-color-scheme: dark) { :root {
  --bg:#14181c; --card:#1b2127; --text:#e4e8ec; --soft:#9aa5af; --line:#323b44; --lane:#232a31; --gap:#1e242a;
  --hatch:#55606b; --ink:#ffffff; --accent:#7db8f2; --label-bg:#3a2f14; --label-ink:#ffd98a; --label-line:#8a6a1f;
  --late:#ff8a80; --early:#5fd3bc; --compute:#5b9bc9; --transfer:#3dae86; --wait:#e0697a; --wait2:#e3a552; --over:#6b747d; --done:#2d353d; } }
* { box-sizing:border-box }
body { margin:0 auto; padding:24px 28px 60px; max-width:1700px; background:var(--bg); color:var(--text);
  font:14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1 { font-size:24px; margin:0 0 4px } h2 { font-size:17px; margin:0 0 8px }
header { margin-bottom:16px } section { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:16px 18px; margin:0 0 16px }
.headline { font-size:16px; margin:4px 0 8px } .headline b { font-variant-numeric:tabular-nums }
.labels { margin:6px 0 0 } .label { display:inline-block; background:var(--label-bg); color:var(--label-ink); border:1px solid var(--label-line);
  border-radius:4px; padding:2px 8px; margin:0 4px 4px 0; font-weight:600; font-size:13px }
.how, .hint { color:var(--soft); margin:0 0 10px; max-width:120ch } .hint { margin:8px 0 0; font-size:12.5px } .how b { color:var(--text) }
.toolbar { display:flex; flex-wrap:wrap; gap:8px 14px; align-items:center; margin-bottom:8px } .grow { flex:1 }
.choice { display:inline-flex; border:1px solid var(--line); border-radius:6px; overflow:hidden } .choice:empty { display:none }
.choice button { border:0; border-right:1px solid var(--line); background:transparent; color:inherit; padding:5px 12px; font:inherit; cursor:pointer }
.choice button:last-child { border-right:0 } .choice button[aria-pressed=true] { background:var(--accent); color:var(--card); font-weight:600 }
button:focus-visible, canvas:focus-visible { outline:2px solid var(--accent); outline-offset:1px }
.legend { display:flex; flex-wrap:wrap; gap:4px 16px; margin:0 0 10px; font-size:13px; align-items:center }
.legend span { display:inline-flex; align-items:center; gap:6px } .legend i { width:18px; height:13px; border-radius:2px; display:inline-block }
.legend i + i { margin-left:-5px }
.picture { position:relative; border:1px solid var(--line); border-radius:6px; overflow:hidden }
canvas { display:block; width:100%; cursor:grab; touch-action:pan-y } canvas.dragging { cursor:grabbing }
#tip { position:fixed; z-index:9; pointer-events:none; background:var(--card); color:var(--text); border:1px solid var(--soft); border-radius:6px;
  padding:8px 10px; font-size:13px; box-shadow:0 4px 16px rgba(0,0,0,.25); max-width:440px } #tip[hidden] { display:none }
#tip b.title { display:flex; align-items:center; gap:7px; margin-bottom:4px } #tip b.title i { width:12px; height:12px; border-radius:2px }
#tip table { border-collapse:collapse; font-variant-numeric:tabular-nums } #tip td, #tip th { padding:1px 0 1px 14px; text-align:right; font-weight:400; border:0 }
#tip th { color:var(--soft) } #tip td:first-child, #tip th:first-child { text-align:left; padding-left:0 } #tip p { margin:0 0 4px; color:var(--soft) }
.late { color:var(--late) } .early { color:var(--early) }
.scroll { overflow-x:auto } table { border-collapse:collapse; width:100% }
section > .scroll th, section > .scroll td { text-align:left; padding:6px 14px 6px 0; border-bottom:1px solid var(--line); vertical-align:top; font-variant-numeric:tabular-nums }
section > .scroll thead th { color:var(--soft); font-weight:600; font-size:12.5px; white-space:nowrap } td.num { white-space:nowrap }
tbody tr[data-row] { cursor:pointer } tr.selected { background:color-mix(in srgb, var(--accent) 9%, transparent) }
tbody th { white-space:nowrap } th button { all:unset; cursor:pointer; color:var(--accent); font-weight:700; padding-left:6px } th .plain { padding-left:6px }
td.time { min-width:150px; white-space:nowrap } .bar { display:block; height:7px; background:var(--lane); border-radius:2px; overflow:hidden; margin-top:4px }
.bar i { display:block; height:100%; background:var(--compute) } .bar.sim i { opacity:.55 } .none { color:var(--soft) }
.use { display:grid; grid-template-columns:minmax(96px,max-content) 80px 44px; gap:8px; align-items:center; white-space:nowrap; font-size:13px } .use .bar { margin:0 } .use b { font-weight:600; text-align:right }
.waits { display:grid; grid-template-columns:max-content max-content 1fr; gap:4px 12px; align-items:center }
.waits .group { font-weight:600 } .waits .which { color:var(--soft); font-size:12.5px } .waits .first { margin-top:8px }
.stack { display:flex; height:24px; border-radius:3px; overflow:hidden; background:var(--lane) }
.stack div { overflow:hidden; white-space:nowrap; text-overflow:clip; font-size:12px; line-height:24px; padding-left:6px; color:#fff; min-width:0; border-right:1px solid var(--card) }
.waits .narrow { padding:0 } #waits .computing { background:var(--compute) } #waits .transferring { background:#2b7d5f }
#waits .waiting { background:repeating-linear-gradient(135deg, #a83244 0 6px, #bd5565 6px 12px) }
#waits .overhead { background:var(--over); color:var(--ink) } #waits .finished { background:var(--done); color:var(--soft) }
.verdict { margin:12px 0 0 }
.facts { display:flex; flex-wrap:wrap; gap:2px 26px; margin:8px 0 0; font-size:13px } .facts div { display:flex; gap:7px } .facts dt { color:var(--soft) } .facts dd { margin:0; overflow-wrap:anywhere }
.plots { display:flex; flex-wrap:wrap; gap:12px } .plot { background:#fff; border-radius:6px; overflow-x:auto } .plot svg { display:block; max-width:100%; height:auto }
@media print { .toolbar, .hint { display:none } section { break-inside:avoid } }
)css";

}  // namespace hetermoe
