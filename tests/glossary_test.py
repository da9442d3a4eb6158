#!/usr/bin/env python3
"""Every code word of docs/glossary.md (what stands between backticks) exists in the program.

usage: glossary_test.py SOURCE_DIR [BUILD_DIR]

A word exists when the code of hetermoe/, comments left out, holds it as an identifier or as a whole text in quotes.
Of a path with dots (`clock.watchdog_s`) every part must. Folders exist as folders, device types in configs/devices,
programs that start ours and commands of ours (`hetermoe plan`, `launch --replan`) by what the code calls them.
"""
import re
import sys
from pathlib import Path

COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*")', re.S)


def words_of(code):
    """Identifiers and quoted texts of C++ code without its comments."""
    code = COMMENT.sub(lambda match: match[1] or " ", code)
    quoted = re.findall(r'"((?:\\.|[^"\\\n])*)"', code)
    return set(re.findall(r"[A-Za-z_]\w*", code)) | set(quoted) | {w for text in quoted for w in text.split()}


def is_known(word, known, source):
    if word.endswith("/"):
        return (source / word).is_dir()
    if re.fullmatch(r"[A-Z]+\d+(#\d+)?", word):
        return (source / "configs/devices" / (word.split("#")[0].lower() + ".yaml")).is_file()
    parts = [word] if word.endswith(".json") else re.split(r"[ .]", word)
    return all({part, part.lstrip("-"), part.replace("-", "_")} & known for part in parts)


def unknown_words(text, known, source):
    words = re.findall(r"`([^`]+)`", text)
    return len(words), sorted({word for word in words if not is_known(word, known, source)})


def self_check():
    """The check must be able to fail: what stands in a comment alone, or nowhere, is unknown."""
    known = words_of('int seen; // gone\n v("key", key, "help"); /* lost */ f("a/b.json"); g("http://x");')
    text = "`seen` `key` `gone` `lost` `seen.key` `seen.gone` `x.json` `a/b.json` `nowhere/`"
    found = unknown_words(text, known, Path("/nonexistent"))
    expected = (9, ["gone", "lost", "nowhere/", "seen.gone", "x.json"])
    if found != expected:
        sys.exit(f"glossary_test: its own check is broken: got {found}, expected {expected}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    self_check()
    source = Path(sys.argv[1]).resolve()
    known = set()
    for path in (source / "hetermoe").rglob("*"):
        if path.suffix in {".h", ".cpp"}:
            known |= words_of(path.read_text())
    num_words, unknown = unknown_words((source / "docs/glossary.md").read_text(), known, source)
    for word in unknown:
        print(f"docs/glossary.md: `{word}` is nowhere in the code of hetermoe/")
    print(f"glossary_test: {num_words} code words, {len(unknown)} unknown")
    return 1 if unknown or num_words == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
