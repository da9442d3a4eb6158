#!/usr/bin/env python3
"""Makes tokens of text by a tokenizer.json of Hugging Face, and writes them as Megatron-LM does: PREFIX.bin and PREFIX.idx,
which hetermoe reads.

    pip install tokenizers          # and pyarrow for .parquet
    python3 tools/tokenize_text.py --tokenizer tokenizer.json --output out/corpus --end-token '</s>' a.jsonl b.parquet c.txt
    build/hetermoe data --data.paths out/corpus.idx

Of .jsonl and .parquet each row is a document, its text under --field; any other file is one document in UTF-8. Nothing is
left under the names of the output when the program ends early.
"""
import argparse
import array
import json
import os
import struct
import sys
from pathlib import Path

BATCH = 1000  # documents that are encoded together, on all cores


def rows_of_jsonl(path, field):
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[field]
            except (ValueError, KeyError, TypeError):
                sys.exit(f"{path} line {number}: no JSON object with a text under \"{field}\"")
            if not isinstance(text, str):
                sys.exit(f"{path} line {number}: \"{field}\" is no text")
            yield text


def rows_of_parquet(path, field):
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        sys.exit("reading .parquet needs pyarrow: pip install pyarrow")
    file = parquet.ParquetFile(path)
    if field not in file.schema_arrow.names:
        sys.exit(f"{path}: no column \"{field}\" but {', '.join(file.schema_arrow.names)}")
    for batch in file.iter_batches(columns=[field]):
        for text in batch.column(0).to_pylist():
            if not isinstance(text, str):
                sys.exit(f"{path}: a row of \"{field}\" is no text")
            yield text


def texts_of(path, field):
    if path.suffix in (".jsonl", ".ndjson"):
        return rows_of_jsonl(path, field)
    if path.suffix == ".parquet":
        return rows_of_parquet(path, field)
    return iter([path.read_text(encoding="utf-8")])


def in_batches(items):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class MegatronWriter:
    """The format is that of docs/data.md, little-endian."""

    def __init__(self, prefix, vocab):
        self.prefix, self.wide = prefix, vocab >= 65500
        self.part = Path(f"{prefix}.bin.part")
        self.part.parent.mkdir(parents=True, exist_ok=True)
        self.bin, self.lengths = open(self.part, "wb"), []

    def add(self, ids):
        tokens = array.array("i" if self.wide else "H", ids)
        if sys.byteorder == "big":
            tokens.byteswap()
        self.bin.write(tokens.tobytes())
        self.lengths.append(len(ids))

    def finish(self):
        self.bin.close()
        width, offset, offsets = 4 if self.wide else 2, 0, []
        for length in self.lengths:
            offsets.append(offset)
            offset += width * length
        count = len(self.lengths)
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4 if self.wide else 8, count, count + 1)
        body = struct.pack(f"<{count}i", *self.lengths) + struct.pack(f"<{count}q", *offsets)
        index = Path(f"{self.prefix}.idx.part")
        index.write_bytes(head + body + struct.pack(f"<{count + 1}q", *range(count + 1)))
        os.replace(self.part, f"{self.prefix}.bin")
        os.replace(index, f"{self.prefix}.idx")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json of a model's folder")
    parser.add_argument("--output", required=True, metavar="PREFIX")
    parser.add_argument("--field", default="text", help="key or column of the text (default: text)")
    parser.add_argument("--end-token", help="a token of the tokenizer after each document, as </s> or <|endoftext|>")
    words = parser.parse_args()
    try:
        from tokenizers import Tokenizer
    except ImportError:
        sys.exit("this needs the package tokenizers: pip install tokenizers")
    tokenizer = Tokenizer.from_file(words.tokenizer)
    end = []
    if words.end_token is not None:
        end = [tokenizer.token_to_id(words.end_token)]
        if end[0] is None:
            sys.exit(f"{words.tokenizer} has no token {words.end_token!r}")
    writer = MegatronWriter(words.output, tokenizer.get_vocab_size(with_added_tokens=True))
    try:
        for path in words.inputs:
            for batch in in_batches(texts_of(path, words.field)):
                for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                    writer.add(encoding.ids + end)
        writer.finish()
    finally:
        writer.part.unlink(missing_ok=True)
    print(f"wrote {words.output}.bin and .idx: {len(writer.lengths)} documents, {sum(writer.lengths)} tokens")


if __name__ == "__main__":
    main()
