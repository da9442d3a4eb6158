#!/usr/bin/env python3
"""The table of claims in docs/testing.md: made of the comments "// Claim: ..." above tests.

usage: tools/claims.py [--write] [SOURCE_DIR]

Compares the table with the comments and says what differs; --write makes it anew. A claim may go over several lines of
its comment. It is proved by the test below it, or by the tests that it names:

    // Claim: two states are one.
    TEST(States, AreOne) {
    // Claim (States.*, Mpi.StatesAre*): two states are one, over processes, too.
    TEST(States, AreOne) {

Names may end in *. The test below is one of them. In a script ("# Claim (pairs): ...") they are those of ctest.
"""
import argparse
import fnmatch
import pathlib
import re
import sys

TEST = re.compile(r"(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)")
BEGIN = re.compile(r"(?://|#) Claim( \(|: )")
MORE = re.compile(r"(?://|#) (.*)")
CLAIM = re.compile(r"Claim(?: \(([^)]*)\))?: (.*)")
FIRST, LAST = "<!-- claims -->\n", "<!-- end of claims -->\n"


class Fault(Exception):
    pass


def claims_of(text, where):
    """[(claim, [names of tests])] of a file."""
    found, lines = [], text.splitlines()
    for i, line in enumerate(lines):
        if not BEGIN.match(line):
            continue
        end = i + 1
        while end < len(lines) and MORE.fullmatch(lines[end]) and not BEGIN.match(lines[end]):
            end += 1
        match = CLAIM.fullmatch(" ".join(MORE.fullmatch(part)[1] for part in lines[i:end]))
        if not match:
            raise Fault(f"{where}:{i + 1}: expected Claim: ..., or Claim (NAMES): ...")
        while end < len(lines) and lines[end].startswith("//"):
            end += 1
        names = [name.strip() for name in match[1].split(",")] if match[1] else []
        if where.endswith(".cpp"):
            test = TEST.match("".join(lines[end : end + 2])) if end < len(lines) else None
            if not test:
                raise Fault(f"{where}:{i + 1}: no test is below the claim")
            below = f"{test[1]}.{test[2]}"
            names = names or [below]
            if not any(fnmatch.fnmatchcase(below, name) for name in names):
                raise Fault(f"{where}:{i + 1}: {below} is below a claim that names {', '.join(names)}")
        elif not names:
            raise Fault(f"{where}:{i + 1}: a claim in a script names its tests in brackets")
        found.append((match[2].removesuffix("."), names))
    return found


def table(source):
    rows = ["| claim | test |", "|---|---|"]
    files = [path for path in (source / "tests").rglob("*") if path.suffix in (".cpp", ".py")]
    for path in sorted(files, key=lambda path: path.relative_to(source).as_posix()):
        for claim, names in claims_of(path.read_text(), path.relative_to(source).as_posix()):
            cell = claim.replace("|", "\\|")
            rows.append(f"| {cell} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(rows) + "\n"


def with_table(page, rows):
    if page.count(FIRST) != 1 or page.count(LAST) != 1:
        raise Fault(f"docs/testing.md lacks the lines {FIRST.strip()} and {LAST.strip()}")
    begin, end = page.index(FIRST) + len(FIRST), page.index(LAST)
    return page[:begin] + rows + page[end:]


def difference(page, mended):
    """What a person reads: the rows that are only in one of them."""
    old, new = page.splitlines(), mended.splitlines()
    return [f"docs/testing.md has a row that no test claims: {row}" for row in old if row not in new] + [
        f"docs/testing.md lacks: {row}" for row in new if row not in old
    ] or ["docs/testing.md has the rows in another order"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, nargs="?", default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    path = options.source / "docs/testing.md"
    try:
        page = path.read_text()
        mended = with_table(page, table(options.source))
    except Fault as fault:
        sys.exit(str(fault))
    if options.write:
        path.write_text(mended)
    elif page != mended:
        sys.exit("\n".join(difference(page, mended)) + "\nmend it by: tools/claims.py --write")


if __name__ == "__main__":
    main()
