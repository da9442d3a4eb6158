#!/usr/bin/env python3
"""Figures of the structure of one or two trees of sources: signs of how far a change reaches, not limits.

    git worktree add /tmp/before 437be28
    python3 bench/house_figures.py /tmp/before .
"""
import functools
import pathlib
import re
import sys

INCLUDE = re.compile(r'#include "(hetermoe/[^"]+)"')
PRODUCT = re.compile(r"(sequences\w*(\(\w*\))?\)? \* [\w.>()-]*seq_len|seq_len\)? \* [\w.>()-]*sequences)")
METHOD = re.compile(r"^  (?!//|using|struct|explicit|static|return|if|for)[\w:<>,&*\s]+\b\w+\([^;{]*\)\s*(const)?\s*[;{]", re.M)


def public_methods(text, name):
    begin = text.index(f"class {name}")
    return len(METHOD.findall(text[begin:text.index("\n private:", begin)]))


def figures(root):
    root = pathlib.Path(root)
    texts = {str(path.relative_to(root)): path.read_text() for path in (root / "hetermoe").rglob("*")
             if path.suffix in (".h", ".cpp", ".cu", ".js", ".css")}
    code = {name: text for name, text in texts.items() if name.endswith((".h", ".cpp"))}
    includes = {name: INCLUDE.findall(text) for name, text in code.items()}

    @functools.lru_cache(None)
    def depth(name):
        return max((1 + depth(included) for included in includes.get(name, [])), default=0)

    def reached(name, seen):
        for included in includes.get(name, []):
            if included not in seen:
                seen.add(included)
                reached(included, seen)
        return seen

    def count(pattern, chosen):
        return sum(len(re.findall(pattern, text)) for name, text in code.items() if chosen(name))

    sources = [name for name in code if name.endswith(".cpp")]
    headers = sorted(len(reached(name, set())) for name in sources)
    placement = next(text for name, text in code.items() if name.endswith("/placement.h"))
    return {
        "lines of the product": sum(len(text.splitlines()) for text in texts.values()),
        "sources": len(sources),
        "comparisons with a kind of op outside ops/": count(r"[!=]= *OpKind::k|OpKind::k\w+ *[!=]=",
                                                            lambda name: not name.startswith("hetermoe/ops/")),
        "files that multiply sequences by their length": sum(1 for name, text in code.items()
                                                             if "placement" not in name and PRODUCT.search(text)),
        "public methods of Placement": public_methods(placement, "Placement"),
        "names of order policies in planner/ and balance/": count(
            r"OrderPolicy::k\w+", lambda name: name.startswith(("hetermoe/planner/", "hetermoe/balance/"))),
        "headers that a source reaches, median": headers[len(headers) // 2],
        "headers that a source reaches, 90th percentile": headers[len(headers) * 9 // 10],
        "longest chain of includes": max(depth(name) for name in sources),
    }


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    columns = [figures(root) for root in sys.argv[1:]]
    for name in columns[0]:
        print(f"{name:52}" + "".join(f"{column[name]:10}" for column in columns))


if __name__ == "__main__":
    main()
