#!/usr/bin/env python3
"""Pages in a browser: no error of the script, the first picture in time, values under the pointer, a zoom, below 5 MB.

usage: page_browser_test.py SOURCE_DIR BUILD_DIR [PAGE.html ...]

Without pages those that test_report leaves in BUILD_DIR. Ends with 77, which ctest counts as skipped, where Chromium is missing.
"""
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

PAGES = ["report_small.html", "report_large.html", "report_1024.html", "report_long.html"]
MOST_BYTES = 5 << 20
MOST_MS = 60_000  # of a page that works on a busy machine; a quiet one takes under 3 s, and the time is printed
LONGEST_S = 120
BROWSERS = ["chromium", "chromium-browser", "google-chrome"]

# Stands before all other scripts of the page: notes errors, and when the picture after the last script was drawn.
BEFORE = """<script>
window.seen = {errors: [], drawn: null};
addEventListener('error', event => seen.errors.push(event.message));
addEventListener('load', () => requestAnimationFrame(() => requestAnimationFrame(() => { seen.drawn = performance.now(); })));
</script>"""

# Stands after them: points at the middle of the first curve, drags over a quarter of it, and writes what it saw.
AFTER = """<script>
function look() {
  const plot = document.querySelector('svg[data-frame]');
  if (plot) {
    const box = plot.getBoundingClientRect();
    const at = (kind, part) => plot.dispatchEvent(new PointerEvent(kind, {bubbles: true, clientX: box.left + part * box.width, clientY: box.top + box.height / 2}));
    at('pointermove', 0.5);
    const tip = document.querySelector('.plot-tip');
    seen.tip = tip && !tip.hidden ? tip.textContent : '';
    const ticks = () => [...plot.querySelectorAll('.x-axis text')].map(text => text.textContent).join(' ');
    seen.before = ticks();
    at('pointerdown', 0.5); at('pointermove', 0.6); at('pointerup', 0.75);
    seen.after = ticks();
    at('dblclick', 0.5);
    seen.again = ticks();
  }
  console.log('SEEN ' + JSON.stringify(seen) + ' END');
}
const waitForPicture = () => (seen.drawn === null ? setTimeout(waitForPicture, 50) : look());
waitForPicture();
</script>"""


def browser():
    return next((found for found in map(shutil.which, BROWSERS) if found), None)


def look_at(program, page):
    """What the page wrote to its console, as a dictionary. The clock is the real one, so the browser ends when it is told to."""
    with tempfile.TemporaryDirectory() as folder:
        probed = Path(folder, "page.html")
        probed.write_text(page.read_text().replace("<style>", BEFORE + "<style>", 1).replace("</body>", AFTER + "</body>"))
        with subprocess.Popen([program, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                               "--remote-debugging-port=0", f"--user-data-dir={folder}/profile", "--window-size=1500,1200",
                               f"file://{probed}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
            timer = threading.Timer(LONGEST_S, run.kill)
            timer.start()
            found = next(filter(None, (re.search(r'"SEEN (.*) END"', line) for line in run.stderr)), None)
            timer.cancel()
            run.kill()
    return json.loads(found[1]) if found else {"errors": [f"the page's script did not end in {LONGEST_S} s"]}


def faults_of(program, page):
    seen, faults = look_at(program, page), []
    faults += [f"error of the script: {error}" for error in seen["errors"]]
    if page.stat().st_size > MOST_BYTES:
        faults.append(f"{page.stat().st_size} bytes, at most {MOST_BYTES}")
    if seen.get("drawn") is None or seen["drawn"] > MOST_MS:
        faults.append(f"first picture after {seen.get('drawn')} ms, at most {MOST_MS}")
    if "before" in seen:
        if not re.search(r"\d", seen["tip"]):
            faults.append(f"no value where a curve is pointed at: {seen['tip']!r}")
        if seen["before"] == seen["after"]:
            faults.append(f"a zoom leaves the ticks as they are: {seen['before']}")
        if seen["before"] != seen["again"]:
            faults.append(f"a double click does not undo a zoom: {seen['again']}, before {seen['before']}")
    drawn = seen.get("drawn")
    print(f"{page.name}: {page.stat().st_size / 2**20:.2f} MiB, first picture after {drawn if drawn is None else round(drawn)} ms"
          f"{', tip: ' + seen['tip'] if seen.get('tip') else ''}")
    return faults


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    pages = [Path(name).resolve() for name in sys.argv[3:]] or [Path(sys.argv[2], name).resolve() for name in PAGES]
    program = browser()
    pages = [page for page in pages if page.exists()]
    if not program or not pages:
        print(f"skipped: pages are opened in Chromium ({program or 'not here'}); test_report makes them")
        return 77
    faults = [f"{page.name}: {fault}" for page in pages for fault in faults_of(program, page)]
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
