#!/usr/bin/env python3
"""Makes tokens of text by a tokenizer.json of Hugging Face, and writes them as Megatron-LM does: PREFIX.bin and PREFIX.idx,
which hetermoe reads.

    pip install tokenizers          # and pyarrow for .parquet
    python3 tools/tokenize_text.py --tokenizer tokenizer.json --output out/corpus --end-token '</s>' a.jsonl b.parquet c.txt
    build/hetermoe data --data.paths out/corpus.idx

    pip install jinja2              # for conversations: lines as docs/data.md has them, the template of the model's folder
    python3 tools/tokenize_text.py --chat --tokenizer MODEL/tokenizer.json --output out/chat conversations.jsonl

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
        self.bin, self.lengths, self.modes, self.ends = open(self.part, "wb"), [], b"", []

    def add(self, ids, answers=()):
        """answers: spans (begin, end) of tokens that are counted; they become sequences of mode 2."""
        tokens = array.array("i" if self.wide else "H", ids)
        if sys.byteorder == "big":
            tokens.byteswap()
        self.bin.write(tokens.tobytes())
        at = 0
        for begin, end in answers:
            if at < begin:
                self.add_sequence(begin - at, 0)
            self.add_sequence(end - begin, 2)
            at = end
        if at < len(ids) or not ids:
            self.add_sequence(len(ids) - at, 0)
        self.ends.append(len(self.lengths))

    def add_sequence(self, length, mode):
        self.lengths.append(length)
        self.modes += bytes([mode])

    def finish(self):
        self.bin.close()
        width, offset, offsets = 4 if self.wide else 2, 0, []
        for length in self.lengths:
            offsets.append(offset)
            offset += width * length
        count = len(self.lengths)
        head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4 if self.wide else 8, count, len(self.ends) + 1)
        body = struct.pack(f"<{count}i", *self.lengths) + struct.pack(f"<{count}q", *offsets)
        index = Path(f"{self.prefix}.idx.part")
        ends = struct.pack(f"<{len(self.ends) + 1}q", 0, *self.ends)
        index.write_bytes(head + body + ends + (self.modes if 2 in self.modes else b""))
        os.replace(self.part, f"{self.prefix}.bin")
        os.replace(index, f"{self.prefix}.idx")


ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant",
         "bot": "assistant", "model": "assistant", "tool": "tool"}


def message_of(said):
    """Role and text, and what an answer has beside them."""
    role, text = (said["from"], said["value"]) if "from" in said else (said["role"], said.get("content"))
    calls = said.get("tool_calls") or []
    if not isinstance(text, str) and not (text is None and calls):
        raise ValueError("a message without a text")
    more = {"reasoning_content": said.get("reasoning_content"), "tool_calls": calls}
    return {"role": ROLES[role], "content": text or "", **{key: value for key, value in more.items() if value}}


def conversation_of(row):
    """Messages of a line, in any of the ways that docs/data.md lists, and the tools that the model is told of. KeyError, TypeError or
    ValueError says what is wrong."""
    def say(role, text):
        return {"role": role, "content": text}
    if "messages" in row or "conversations" in row:
        talk = row.get("messages", row.get("conversations"))
    elif "instruction" in row:
        asked = row["instruction"] + ("\n\n" + row["input"] if row.get("input", "").strip() else "")
        talk = [say("system", row["system"])] if row.get("system", "").strip() else []
        talk = talk + [say("user", asked), say("assistant", row["output"])]
    else:
        talk = [say("user", row["prompt"]), say("assistant", row["completion"])]
    talk = [message_of(said) for said in talk]
    if not any(said["role"] == "assistant" and (said["content"].strip() or "tool_calls" in said) for said in talk):
        raise ValueError("no answer")
    return talk, row.get("tools") or None


def conversations_of(path):
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield *conversation_of(json.loads(line)), f"{path} line {number}"
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                sys.exit(f"{path} line {number}: no conversation that docs/data.md describes ({error})")


def template_of(folder):
    """The model's own template, as a function (messages, tools, ask) -> text."""
    try:
        import jinja2.sandbox
    except ImportError:
        sys.exit("--chat needs the package jinja2: pip install jinja2")
    config = folder / "tokenizer_config.json"
    words = json.loads(config.read_text()) if config.exists() else {}
    jinja = folder / "chat_template.jinja"
    text = jinja.read_text() if jinja.exists() else words.get("chat_template")
    if isinstance(text, list):
        text = next((t["template"] for t in text if t["name"] == "default"), None)
    if not text:
        sys.exit(f"{folder} has no chat_template: expected one in tokenizer_config.json or chat_template.jinja")
    world = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                         extensions=["jinja2.ext.loopcontrols"])

    def refuse(message):
        raise jinja2.TemplateError(message)
    world.globals["raise_exception"] = refuse
    # As transformers has it; jinja2's own writes < and > otherwise.
    world.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False, **how})
    compiled = world.from_string(text)
    special = {key: value["content"] if isinstance(value, dict) else value for key, value in words.items()
               if key.endswith("_token") and value}
    return lambda messages, tools, ask: compiled.render(messages=messages, tools=tools, add_generation_prompt=ask, **special)


def rendered(render, messages, tools, place):
    """The text of a conversation, and the spans of its answers: what the model writes after it was asked."""
    text, answers = render(messages, tools, False), []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, after = render(messages[:i], tools, True), render(messages[:i + 1], tools, False).rstrip()
        if not (text.startswith(before) and text.startswith(after) and len(before) < len(after)):
            sys.exit(f"{place}: the template writes the conversation up to message {i + 1} otherwise than in the whole: "
                     "give its last answer alone")
        answers.append((len(before), len(after)))
    return text, answers


def spans_of(encoding, answers):
    """Spans of tokens that begin in one of the answers, neighbours joined."""
    spans = []
    for i, (begin, _) in enumerate(encoding.offsets):
        if not any(first <= begin < last for first, last in answers):
            continue
        if spans and spans[-1][1] == i:
            spans[-1] = (spans[-1][0], i + 1)
        else:
            spans.append((i, i + 1))
    return spans


def add_conversations(path, tokenizer, render, writer):
    for batch in in_batches(conversations_of(path)):
        texts = [rendered(render, messages, tools, place) for messages, tools, place in batch]
        for (_, answers), encoding in zip(texts, tokenizer.encode_batch([t for t, _ in texts], add_special_tokens=False)):
            writer.add(encoding.ids, spans_of(encoding, answers))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json of a model's folder")
    parser.add_argument("--output", required=True, metavar="PREFIX")
    parser.add_argument("--field", default="text", help="key or column of the text (default: text)")
    parser.add_argument("--chat", action="store_true", help="lines of .jsonl are conversations; their answers are marked")
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
    render = template_of(Path(words.tokenizer).parent) if words.chat else None
    try:
        for path in words.inputs:
            if words.chat:
                add_conversations(path, tokenizer, render, writer)
                continue
            for batch in in_batches(texts_of(path, words.field)):
                for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                    writer.add(encoding.ids + end)
        writer.finish()
    finally:
        writer.part.unlink(missing_ok=True)
    print(f"wrote {words.output}.bin and .idx: {len(writer.ends)} documents, {sum(writer.lengths)} tokens")


if __name__ == "__main__":
    main()
