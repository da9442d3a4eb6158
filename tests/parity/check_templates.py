#!/usr/bin/env python3
"""What hetermoe renders of conversations is what transformers makes of a model's own template. Nothing of this runs in the tests: the
templates belong to the models' folders, which are not here. docs/data.md says against what it was run.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install transformers jinja2
  /tmp/venv/bin/python tests/parity/check_templates.py build/hetermoe qwen3=MODEL_FOLDER llama3.1=OTHER_FOLDER

A folder has chat_template.jinja, or tokenizer_config.json with chat_template. Ends with 1 when a text is not the same.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


ASK, LONG = say("user", " Hi\nthere "), say("assistant", "Hello\n\n  world ")
WEATHER = call("weather", city="Málaga \"x\" \\ \n <b>", days=[1, 2.5, True, None, 1e-7, 12345678], deep={"a": {}, "b": []})
TALKS = {
    "plain": [ASK, LONG],
    "system": [say("system", " Be brief. "), ASK, LONG, say("user", "Bye"), say("assistant", "See you")],
    "thoughts inside": [ASK, say("assistant", "<think>\n\nOne.\n</think>\n\nTwo"), say("user", "Bye"),
                        say("assistant", "<think>\nThree\n\n</think>\n\n\nFour")],
    "thoughts apart": [ASK, say("assistant", "A", reasoning_content="r1"), say("user", "Bye"), say("assistant", "B", reasoning_content="\nr2\n")],
    "ends with a question": [ASK, LONG, say("user", "And?")],
    "tools": [ASK, say("assistant", "", tool_calls=[WEATHER]), say("tool", "sun\n\"20\""), say("tool", "wind"), say("assistant", "Fine.")],
    "tools, thought and asked again": [ASK, say("assistant", "", reasoning_content="Ask.", tool_calls=[WEATHER]), say("tool", "sun"),
                                       say("assistant", "", tool_calls=[call("clock")]), say("tool", "9"), say("assistant", "Nine."),
                                       say("user", "Thanks"), say("assistant", "Yes")],
    "text and two calls": [ASK, say("assistant", "Let me see.", tool_calls=[WEATHER, call("clock")]), say("tool", "sun"),
                           say("assistant", "Fine.")],
}


def ours(program, template, talk, work):
    """None where hetermoe says that it has no form for it."""
    path = work / "talk.jsonl"
    path.write_text(json.dumps({"messages": talk}, ensure_ascii=False) + "\n")
    done = subprocess.run([program, "data", "--data.paths", str(path), "--data.template", template, "--data.answers_only", "false",
                           "--train.seq_len", "4096", "--data.validation_share", "0", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        print("   ", done.stderr.strip())
        return None
    return bytes(json.loads(done.stdout)["sequence"]["tokens"]).rstrip(b"\0").decode()


def theirs(folder, talk):
    jinja, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    words = json.loads(config.read_text()) if config.exists() else {}
    text = jinja.read_text() if jinja.exists() else words["chat_template"]
    special = {key: words[key]["content"] if isinstance(words[key], dict) else words[key] for key in ("bos_token", "eos_token") if words.get(key)}
    rendered, _ = render_jinja_template([talk], chat_template=text, add_generation_prompt=False, **special)
    return rendered[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("templates", nargs="+", metavar="NAME=FOLDER")
    given = parser.parse_args()
    wrong = 0
    for name, folder in (pair.split("=", 1) for pair in given.templates):
        for what, talk in TALKS.items():
            with tempfile.TemporaryDirectory() as work:
                got = ours(given.program, name, talk, Path(work))
            if got is None:
                print(f"{name}: {what}: refused")
                continue
            expected = theirs(Path(folder), talk)
            wrong += got != expected
            print(f"{name}: {what}: {'the same' if got == expected else f'OTHERWISE{chr(10)}{got!r}{chr(10)}{expected!r}'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
