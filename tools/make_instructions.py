#!/usr/bin/env python3
"""Writes configs/data/instructions.jsonl: questions and answers that a tiny model can learn, for configs/jobs/finetune.yaml.

    python3 tools/make_instructions.py > configs/data/instructions.jsonl

Words are made of syllables, so that few come twice: who answers about the last lines has learned what to do with a word,
not the word.
"""
import json
import random

LINES = 3000


def word(draw):
    syllables = draw.choice((1, 2, 2))
    return "".join(draw.choice("bdfgklmnprstv") + draw.choice("aeiou") for _ in range(syllables)) + draw.choice("klmnrst")


def question(draw):
    kind = draw.randrange(6)
    name, number = word(draw), draw.randrange(10, 99)
    if kind == 0:
        return f"Write {name} in capitals.", name.upper()
    if kind == 1:
        return f"Repeat {name}.", name
    if kind == 2:
        return f"What is the first letter of {name}?", name[0]
    if kind == 3:
        return f"Spell {name}.", "-".join(name)
    if kind == 4:
        return f"What comes after {number}?", str(number + 1)
    one, two = draw.randrange(10), draw.randrange(10)
    return f"What is {one} + {two}?", str(one + two)


def main():
    draw = random.Random(1)
    for _ in range(LINES):
        asked, answer = question(draw)
        print(json.dumps({"prompt": asked, "completion": answer}))


if __name__ == "__main__":
    main()
