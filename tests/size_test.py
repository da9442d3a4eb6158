#!/usr/bin/env python3
"""Functions and files stay small enough to be read at once.

usage: size_test.py SOURCE_DIR [BUILD_DIR]

No function of hetermoe/ or tests/ has more than 60 lines, no source file more than 450. Tables (files that are one list of
rows) stand in TABLES with the reason.
"""
import re
import sys
import tempfile
from pathlib import Path

MAX_FUNCTION = 60
MAX_FILE = 450
TABLES = {}
SUFFIXES = {".h", ".cpp", ".cu", ".js"}
NO_FUNCTION = re.compile(r"\s*(namespace|class|struct|enum|union|if|for|while|switch|else|do|try|extern|template)\b|.*\b(class|struct|enum) \w+[^()]*\{$")


def long_functions(text, limit):
    """(first line, lines) of every function body over the limit. Relies on the layout that clang-format gives."""
    lines = text.splitlines()
    found = []
    for i, line in enumerate(lines):
        if not line.endswith("{") or "(" not in line and ")" not in line or NO_FUNCTION.match(line):
            continue
        indent = len(line) - len(line.lstrip())
        # The opening line of a declaration that goes over several lines is indented deeper than its closing brace.
        ends = [e for e in range(i + 1, min(len(lines), i + 2000)) if re.fullmatch(r" {0,%d}\}\S{0,2}" % indent, lines[e])]
        if ends and ends[0] - i + 1 > limit:
            found.append((i + 1, ends[0] - i + 1))
    return found


def check(source):
    faults = []
    for folder in ("hetermoe", "tests", "bench", "fuzz"):
        for path in sorted((source / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            name = path.relative_to(source).as_posix()
            text = path.read_text()
            count = text.count("\n")
            if count > MAX_FILE and name not in TABLES:
                faults.append(f"{name}: {count} lines, at most {MAX_FILE}: cut it, or say in TABLES why it is one table")
            for line, length in long_functions(text, MAX_FUNCTION):
                faults.append(f"{name}:{line}: a function of {length} lines, at most {MAX_FUNCTION}")
    return faults


def self_test():
    """A function of 61 lines and a file of 451 are found; one line less is not."""
    body = lambda n: "int f(int x) {\n" + "  ++x;\n" * (n - 2) + "}\n"
    assert long_functions(body(61), 60) == [(1, 61)], long_functions(body(61), 60)
    assert long_functions(body(60), 60) == []
    assert long_functions("void f(int a,\n       int b) {\n" + "  ++a;\n" * 60 + "}\n", 60) == [(2, 62)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hetermoe").mkdir()
        (Path(folder) / "hetermoe/a.cpp").write_text("//\n" * 451)
        (Path(folder) / "hetermoe/b.cpp").write_text("//\n" * 450)
        assert len(check(Path(folder))) == 1, check(Path(folder))


def main():
    self_test()
    faults = check(Path(sys.argv[1]))
    print("\n".join(faults) or "all functions and files are small enough")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
