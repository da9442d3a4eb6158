#!/usr/bin/env python3
"""The reader that docs/routing.md shows reads the trace that tests/routing/golden_trace.h has byte by byte.

usage: routing_reader_test.py SOURCE_DIR [BUILD_DIR]
"""
import re
import sys
import tempfile
from pathlib import Path


def golden_bytes(header):
    """The bytes of golden_bytes(), put together from its texts."""
    code = header[header.index("golden_bytes()"):]
    out = b""
    for json, text in re.findall(r'R"\((.*?)\)"|"([^"]*)"', code):
        if json:
            out += json.encode()
        elif text.strip():
            out += bytes.fromhex(text)
        else:
            out += text.encode()  # the blanks that pad the header
    return out


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    source = Path(sys.argv[1])
    page = (source / "docs/routing.md").read_text()
    scope = {}
    exec(re.search(r"```python\n(import array.*?)```", page, re.S)[1], scope)
    data = golden_bytes((source / "tests/routing/golden_trace.h").read_text())
    if len(data) != 328:
        sys.exit(f"routing_reader_test: got {len(data)} golden bytes, expected 328")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "golden.routes"
        path.write_bytes(data)
        read = list(scope["read_routes"](path))
    expected = [(2, 1, [[0, 1], [0, 2], [1, 0], [3, 0], [3, 2], [-1, -1]])]
    if read != expected:
        sys.exit(f"routing_reader_test: got {read}, expected {expected}")
    print("routing_reader_test: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
