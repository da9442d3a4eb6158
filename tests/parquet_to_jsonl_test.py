#!/usr/bin/env python3
"""tools/parquet_to_jsonl.py writes the texts of Parquet files as JSON lines, or nothing at all.

usage: parquet_to_jsonl_test.py SOURCE_DIR [BUILD_DIR]

Needs pyarrow; without it only the message that asks for it is tested, and the rest is skipped.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
TEXTS = ["first", "two\nlines, \"quoted\"", "größer ☃", "", "last"]


def convert(source, *words, **environment):
    return subprocess.run([sys.executable, "-B", source / "tools/parquet_to_jsonl.py", *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, **environment})


def check_missing(source, folder):
    """As on a machine without pyarrow: a module of that name that cannot be imported."""
    (folder / "without").mkdir()
    (folder / "without/pyarrow.py").write_text("raise ImportError")
    (folder / "x.parquet").write_bytes(b"PAR1")
    done = convert(source, "--output", folder / "none.jsonl", folder / "x.parquet", PYTHONPATH=str(folder / "without"))
    assert done.returncode == 1 and "needs pyarrow: pip install pyarrow" in done.stderr, done.stderr
    assert not list(folder.glob("none*")), "something is left of a run that failed"


def check_texts(source, folder, pyarrow, parquet):
    for name, texts in (("a", TEXTS[:3]), ("b", TEXTS[3:])):
        parquet.write_table(pyarrow.table({"content": texts, "number": list(range(len(texts)))}), folder / f"{name}.parquet",
                            row_group_size=2)
    out = folder / "new/corpus.jsonl"
    done = convert(source, "--column", "content", "--output", out, folder / "a.parquet", folder / "b.parquet")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote {out}: {len(TEXTS)} rows\n", done.stdout
    lines = out.read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [{"text": text} for text in TEXTS] and lines[-1] == "", lines
    assert [path.name for path in out.parent.iterdir()] == ["corpus.jsonl"]


def check_refused(source, folder, pyarrow, parquet):
    """What was there under the name stays when a file is none, lacks the column, or has a row without text."""
    out = folder / "new/corpus.jsonl"
    before = out.read_bytes()
    (folder / "broken.parquet").write_bytes(b"no parquet")
    parquet.write_table(pyarrow.table({"content": ["text", None]}), folder / "null.parquet")
    for words in (("--column", "content", folder / "a.parquet", folder / "broken.parquet"), ("--column", "absent", folder / "a.parquet"),
                  ("--column", "content", folder / "null.parquet")):
        done = convert(source, "--output", out, *words)
        assert done.returncode != 0, f"{words} were taken"
        assert out.read_bytes() == before and [path.name for path in out.parent.iterdir()] == ["corpus.jsonl"]


def main():
    source = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_missing(source, folder)
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            print("parquet_to_jsonl_test: skipped all but one check: needs pyarrow (pip install pyarrow)")
            sys.exit(SKIPPED)
        check_texts(source, folder, pyarrow, parquet)
        check_refused(source, folder, pyarrow, parquet)
    print("parquet_to_jsonl_test: passed")


if __name__ == "__main__":
    main()
