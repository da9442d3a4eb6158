#!/usr/bin/env python3
"""Wraps paragraphs and list items of Markdown pages at 120 columns where a line is longer.

Tables, code, headings and HTML stay. Code spans are never broken.
usage: wrap.py [--check] FILE_OR_FOLDER...   --check changes nothing and fails where a line would change
"""
import pathlib
import re
import sys
import textwrap

WIDTH = 120
MARKER = re.compile(r'^(\s*)([-*+]|\d+\.)(\s+)')
KEPT = ('|', '#', '<', '>', '![', '[^')


def wrapped(lines):
    """A paragraph or list item, whose first line may have a marker."""
    match = MARKER.match(lines[0])
    indent = match.end() if match else len(lines[0]) - len(lines[0].lstrip())
    first = lines[0][:indent]
    text = ' '.join([lines[0][indent:].strip()] + [line.strip() for line in lines[1:]])
    text = re.sub(r'`[^`]*`', lambda code: code.group(0).replace(' ', '\0'), text)
    out = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=' ' * indent,
                        break_long_words=False, break_on_hyphens=False)
    # A line that begins as a list item or heading does would be one.
    for i in range(1, len(out)):
        if re.match(r'^\s*([-*+#|>]|\d+\.)(\s|$)', out[i]):
            return lines
    return [line.replace('\0', ' ') for line in out]


def page(text):
    out, block, fenced = [], [], False

    def end():
        if block:
            out.extend(wrapped(block) if any(len(line) > WIDTH for line in block) else block)
            block.clear()

    for line in text.split('\n'):
        if line.lstrip().startswith('```'):
            end()
            fenced = not fenced
            out.append(line)
        elif fenced or not line.strip() or line.lstrip().startswith(KEPT) or line.endswith('  '):
            end()
            out.append(line)
        elif line.startswith('    ') and not block and not MARKER.match(line):
            out.append(line)  # code
        else:
            if MARKER.match(line):
                end()
            block.append(line)
    end()
    return '\n'.join(out)


def main(arguments):
    check = '--check' in arguments
    changed = []
    for name in [a for a in arguments if a != '--check']:
        path = pathlib.Path(name)
        for file in sorted(path.rglob('*.md')) if path.is_dir() else [path]:
            before = file.read_text()
            after = page(before)
            if after == before:
                continue
            changed.append(str(file))
            if not check:
                file.write_text(after)
    if check and changed:
        sys.exit('lines over %d columns, run ./dev format: %s' % (WIDTH, ', '.join(changed)))


if __name__ == '__main__':
    main(sys.argv[1:])
