#!/usr/bin/env python3
"""Every test that README and docs/*.md name (`Suite.Test`, perhaps with * or ... at its end) exists.

usage: doc_names_test.py SOURCE_DIR [BUILD_DIR]

Dated results and decisions keep the names of their day and are not read.
"""
import re
import sys
from pathlib import Path

DEFINED = re.compile(r"(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)")
NAMED = re.compile(r"`[^`\n]*?\b([A-Z]\w+\.[A-Z]\w+)(\*|\.\.\.)?[^`\n]*`")


def missing_names(text, defined):
    """Names in backticks whose suite is one of ours or whose end is open; files (`Find.Me.py`) have small endings."""
    found = [(match[1], bool(match[2])) for match in NAMED.finditer(text)]
    return len(found), sorted(
        {name for name, is_open in found if not (any(d.startswith(name) for d in defined) if is_open else name in defined)})


def self_check():
    defined = {"Ab.CdThatHolds"}
    assert missing_names("`Ab.CdThatHolds`, `Ab.CdThat*` and `Ab.CdTh...`, Ab.Gone", defined) == (3, [])
    assert missing_names("`Ab.CdThat` `x Ab.Gone*`", defined) == (2, ["Ab.CdThat", "Ab.Gone"])


def main():
    self_check()
    source = Path(sys.argv[1])
    defined = set()
    for path in (source / "tests").rglob("*.cpp"):
        defined |= {f"{suite}.{name}" for suite, name in DEFINED.findall(path.read_text())}
    count, faults = 0, []
    for path in [source / "README.md", source / "CONTRIBUTING.md", *sorted((source / "docs").glob("*.md"))]:
        named, missing = missing_names(path.read_text(), defined)
        count += named
        faults += [f"{path.relative_to(source)}: no test has the name {name}" for name in missing]
    print("\n".join(faults) or f"{count} names of tests in the docs exist")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
