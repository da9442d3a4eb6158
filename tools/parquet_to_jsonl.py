#!/usr/bin/env python3
"""Writes one column of Parquet files as JSON lines, {"text": ...}, which hetermoe reads.

    pip install pyarrow
    python3 tools/parquet_to_jsonl.py --column content --output out/corpus.jsonl a.parquet b.parquet
    build/hetermoe data --data.paths out/corpus.jsonl
"""
import argparse
import json
import os
from pathlib import Path

from tokenize_text import rows_of_parquet


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--output", required=True)
    parser.add_argument("--column", default="text", help="column of the text (default: text)")
    words = parser.parse_args()
    part, rows = Path(words.output + ".part"), 0
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(part, "w", encoding="utf-8") as out:
            for path in words.inputs:
                for text in rows_of_parquet(path, words.column):
                    out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                    rows += 1
        os.replace(part, words.output)
    finally:
        part.unlink(missing_ok=True)
    print(f"wrote {words.output}: {rows} rows")


if __name__ == "__main__":
    main()
