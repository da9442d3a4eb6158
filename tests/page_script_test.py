#!/usr/bin/env python3
"""The script of the HTML report: its syntax, and its functions, by node's own test runner (tests/report/page_test.mjs).

usage: page_script_test.py SOURCE_DIR [BUILD_DIR]

Ends with 77, which ctest counts as skipped, where node 18 or newer is missing.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PARTS = ["page_data.js", "page_picture.js", "page_controls.js", "page_live.js", "page_plots.js"]
MIN_NODE = 18  # the first with a test runner


def node_version():
    if not shutil.which("node"):
        return 0
    text = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout
    found = re.match(r"v(\d+)\.", text)
    return int(found[1]) if found else 0


def syntax_errors(text):
    """What node says of a script with these parts joined; empty when it is sound."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.js")
        path.write_text("'use strict';\n(() => {\n" + text + "})();\n")
        run = subprocess.run(["node", "--check", str(path)], capture_output=True, text=True)
    return run.stderr if run.returncode else ""


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    source = Path(sys.argv[1]).resolve()
    cases = source / "tests/report/page_test.mjs"
    if node_version() < MIN_NODE:
        print(f"skipped: {len(re.findall(r'^test[(]', cases.read_text(), re.M)) + len(PARTS)} checks of the report's script "
              f"need node {MIN_NODE} or newer")
        return 77
    if not syntax_errors("const a = ;\n"):
        sys.exit("page_script_test: node --check finds nothing wrong with a broken script")
    folder = source / "hetermoe/report"
    for part in PARTS:
        errors = syntax_errors((folder / part).read_text())
        if errors:
            sys.exit(f"{part}:\n{errors}")
    return subprocess.run(["node", "--test", str(cases)], env={**os.environ, "PAGE_FOLDER": str(folder)}).returncode


if __name__ == "__main__":
    sys.exit(main())
