#!/usr/bin/env python3
"""The tokens that hetermoe makes of text are those of the package `tokenizers`. Nothing of this runs in the tests. docs/data.md says
against what it was run.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers
  /tmp/venv/bin/python tests/parity/check_tokenizers.py build/hetermoe MODEL/tokenizer.json TEXT_FILE... [--megabytes 100]

The files are one text after another, cut into documents of --document characters. Prints differences and speed; ends with 1 where a
document has other tokens.
"""
import argparse
import array
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer


def documents_of(paths, limit, size):
    out, total = [], 0
    for path in paths:
        text = path.read_text(encoding="utf-8", errors="replace").replace("\0", " ")
        for begin in range(0, len(text), size):
            if total >= limit:
                return out
            out.append(text[begin:begin + size])
            total += len(out[-1].encode())
    return out


def tokens_of_hetermoe(program, tokenizer, documents, folder):
    """Tokens of each document, and the seconds of the program, start and writing included."""
    lines = folder / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    begin = time.perf_counter()
    run = subprocess.run([program, "data", "--data.paths", str(lines), "--data.tokenizer", str(tokenizer), "--data.cache", "none", "--train.seq_len", "8",
                          "--data.validation_share", "0", "--write", str(folder / "tokens"), "--json"], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if run.returncode != 0:
        sys.exit(run.stderr)
    index = (folder / "tokens.idx").read_bytes()
    wide, count = index[17] == 4, int.from_bytes(index[18:26], "little")
    lengths = array.array("i", index[34:34 + 4 * count])
    ids = array.array("i" if wide else "H", (folder / "tokens.bin").read_bytes())
    out, at = [], 0
    for length in lengths:
        out.append(ids[at:at + length].tolist())
        at += length
    return out, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", nargs="+", type=Path)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--document", type=int, default=20000)
    words = parser.parse_args()
    documents = documents_of(words.texts, words.megabytes * 1e6, words.document)
    size = sum(len(text.encode()) for text in documents) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        ours, seconds = tokens_of_hetermoe(words.program, words.tokenizer, documents, Path(folder))
    package = Tokenizer.from_file(str(words.tokenizer))
    begin, differ, tokens = time.perf_counter(), 0, 0
    end = []
    if (words.tokenizer.parent / "tokenizer_config.json").exists():
        end = json.loads((words.tokenizer.parent / "tokenizer_config.json").read_text()).get("eos_token") or []
        end = [package.token_to_id(end if isinstance(end, str) else end["content"])] if end else []
    if len(ours) != len(documents):
        sys.exit(f"{len(ours)} documents of {len(documents)}")
    for first in range(0, len(documents), 1000):
        texts = documents[first:first + 1000]
        for text, mine, theirs in zip(texts, ours[first:], package.encode_batch_fast(texts, add_special_tokens=False)):
            tokens += len(theirs.ids)
            if mine != theirs.ids + end:
                differ += 1
                if differ < 4:
                    print(f"differs: {text[:60]!r}")
    theirs = time.perf_counter() - begin
    print(f"{words.tokenizer}: {len(documents)} documents, {size:.1f} MB, {tokens} tokens; {differ} documents differ; "
          f"hetermoe {size / seconds:.1f} MB/s with start and writing, tokenizers {size / theirs:.1f} MB/s")
    return differ > 0


if __name__ == "__main__":
    sys.exit(main())
