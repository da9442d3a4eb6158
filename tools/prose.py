#!/usr/bin/env python3
"""Lists sentences that are hard to read, for the writer's eye: in README, docs/, comments of headers, option help.

usage: tools/prose.py [--most N] [--words 30] [PATH...]

Three kinds: more words than --words; a sentence that begins with "Of", "What" or "Whoever"; "nobody" or "somebody" for
software. Results pages and tables of figures are left out.
"""
import argparse
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
HELP = re.compile(r'v\("\w+", [\w.]+,((?:\s*"(?:[^"\\]|\\.)*")+)')
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
STARTS = ("Of ", "What ", "Whoever ")


def sentences(text):
    text = CODE.sub("code", LINK.sub(r"\1", text))
    for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(text.split())):
        if sentence:
            yield sentence


def markdown(path):
    """(line, text) of paragraphs, list items and cells."""
    block, first, fenced = [], 1, False
    for number, line in enumerate(path.read_text().splitlines() + [""], 1):
        stripped = line.strip()
        fenced ^= stripped.startswith("```")
        ends = not stripped or stripped[0] in "|#*-" or line.startswith("    ") or fenced
        if ends and block:
            yield first, " ".join(block)
            block = []
        if stripped.startswith("|"):
            for cell in stripped.strip("|").split("|"):
                yield number, cell.strip()
        elif stripped and not line.startswith("    ") and not fenced and not stripped.startswith("#"):
            if not block:
                first = number
            block.append(stripped.lstrip("*- "))


def code(path):
    text = path.read_text()
    for found in HELP.finditer(text):
        yield text.count("\n", 0, found.start()) + 1, "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1]))
    block, first = [], 1
    for number, line in enumerate(text.splitlines() + [""], 1):
        found = re.match(r"\s*///? ?(.*)", line)
        if found:
            first = first if block else number
            block.append(found[1])
        elif block:
            yield first, " ".join(block)
            block = []


def faults(sentence, words):
    count = len(re.findall(r"[\w'-]+", sentence))
    if count > words:
        yield f"{count} words"
    if sentence.startswith(STARTS) and not sentence.endswith("?"):
        yield "begins with " + sentence.split()[0]
    if re.search(r"\b(no|some)body\b", sentence, re.I):
        yield "nobody, somebody"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    parser.add_argument("--most", type=int, default=40, help="sentences that are printed")
    parser.add_argument("--words", type=int, default=30)
    options = parser.parse_args()
    paths = options.paths or [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
                              *sorted((ROOT / "hetermoe").rglob("*.h"))]
    found = []
    for path in paths:
        for line, text in (markdown if path.suffix == ".md" else code)(path):
            for sentence in sentences(text):
                for fault in faults(sentence, options.words):
                    found.append((fault, f"{path}:{line}".replace(f"{ROOT}/", ""), sentence))
    for fault, where, sentence in found[: options.most]:
        print(f"{where}: {fault}: {sentence[:140]}")
    kinds = {}
    for fault, _, _ in found:
        kind = "long" if fault.endswith("words") else fault
        kinds[kind] = kinds.get(kind, 0) + 1
    print(", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "nothing found")


if __name__ == "__main__":
    main()
