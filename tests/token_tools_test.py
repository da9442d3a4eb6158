#!/usr/bin/env python3
"""tools/tokenize_text.py writes the token files that docs/data.md describes, and names the line that is wrong.

usage: token_tools_test.py SOURCE_DIR [BUILD_DIR]

Needs no package: the tokenizer itself is that of PyPI and not under test.
"""
import struct
import sys
import tempfile
from pathlib import Path


def check_files(tools, folder):
    """Byte by byte as the format is described: documents [5, 6, 7] and [8]."""
    for vocab, code, width in ((65499, 8, "H"), (65500, 4, "i")):
        writer = tools.MegatronWriter(folder / f"out{vocab}/x", vocab)
        writer.add([5, 6, 7])
        writer.add([8])
        assert not (folder / f"out{vocab}/x.bin").exists(), "the name is taken before the end"
        writer.finish()
        size = struct.calcsize(width)
        expected = b"MMIDIDX\0\0" + struct.pack("<Q", 1) + bytes([code]) + struct.pack("<QQ", 2, 3)
        expected += struct.pack("<2i", 3, 1) + struct.pack("<2q", 0, 3 * size) + struct.pack("<3q", 0, 1, 2)
        assert (folder / f"out{vocab}/x.idx").read_bytes() == expected
        assert (folder / f"out{vocab}/x.bin").read_bytes() == struct.pack(f"<4{width}", 5, 6, 7, 8)
        assert sorted(p.name for p in (folder / f"out{vocab}").iterdir()) == ["x.bin", "x.idx"]


def check_lines(tools, folder):
    path = folder / "x.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": "b"}\n')
    assert list(tools.texts_of(path, "text")) == ["a", "b"]
    for wrong in ('{"other": 1}', "no json", '{"text": 1}', "[1]"):
        path.write_text('{"text": "a"}\n' + wrong + "\n")
        try:
            list(tools.texts_of(path, "text"))
        except SystemExit as refused:
            assert f"{path} line 2: " in str(refused), refused
        else:
            sys.exit(f"token_tools_test: {wrong} was taken")


def check_conversations(tools, folder):
    """Answers are sequences of mode 2; a template is asked for what comes before each of them."""
    writer = tools.MegatronWriter(folder / "chat", 256)
    writer.add([1, 2, 3, 4, 5], [(2, 4)])
    writer.add([6, 7], [(1, 2)])
    writer.finish()
    expected = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 5, 3)
    expected += struct.pack("<5i", 2, 2, 1, 1, 1) + struct.pack("<5q", 0, 4, 8, 10, 12) + struct.pack("<3q", 0, 3, 5)
    assert (folder / "chat.idx").read_bytes() == expected + bytes([0, 2, 0, 0, 2])
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
    for row in ({"messages": said}, {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "bc"}]},
                {"instruction": "a", "output": "bc"}, {"prompt": "a", "completion": "bc"}):
        assert tools.conversation_of(row) == (said, None), row
    calls = [{"function": {"name": "f", "arguments": {"x": 1}}}]
    heard = [said[0], {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": calls}, {"role": "tool", "content": "b"}]
    expected = [said[0], {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": calls}, heard[2]]
    assert tools.conversation_of({"messages": heard, "tools": [{"name": "f"}]}) == (expected, [{"name": "f"}])

    def render(messages, given, ask):
        assert given is None
        return "".join(f"<{m['role']}>{m['content']};\n" for m in messages) + ("<assistant>" if ask else "")
    text, answers = tools.rendered(render, said * 2, None, "here")
    assert [text[a:b] for a, b in answers] == ["bc;", "bc;"], (text, answers)

    class Encoding:
        offsets = [(0, 2), (2, 3), (3, 5), (5, 6), (6, 7)]
    assert tools.spans_of(Encoding, [(2, 4), (6, 7)]) == [(1, 3), (4, 5)]
    path = folder / "wrong.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n{"messages": [{"role": "critic", "content": "x"}]}\n')
    try:
        list(tools.conversations_of(path))
    except SystemExit as refused:
        assert f"{path} line 2: " in str(refused), refused
    else:
        sys.exit("token_tools_test: a critic was heard")


def main():
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path(sys.argv[1]) / "tools"))
    import tokenize_text

    with tempfile.TemporaryDirectory() as folder:
        check_files(tokenize_text, Path(folder))
        check_lines(tokenize_text, Path(folder))
        check_conversations(tokenize_text, Path(folder))
    print("token_tools_test: passed")


if __name__ == "__main__":
    main()
