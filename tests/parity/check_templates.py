#!/usr/bin/env python3
"""What hetermoe renders of conversations is what transformers makes of a model's own template. Nothing of this runs in the tests.
Templates of one line are below; longer ones belong to the models' folders, which are not here. docs/data.md says against what it was run.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install transformers jinja2
  /tmp/venv/bin/python tests/parity/check_templates.py build/hetermoe [qwen3=MODEL_FOLDER llama3.1=OTHER_FOLDER ...]

A folder has chat_template.jinja, or tokenizer_config.json with chat_template. Ends with 1 when a text is not the same.
"""
import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template


# As the models' tokenizer_config.json have them: row, model, begin and end token, template.
ALTERNATE = ("{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("
             "'Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + "
             "message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_tokenBLANK }}{% else %}{{ "
             "raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")
PUBLIC = [
    ("chatml", "OpenHermes 2.5", "<s>", "<|im_end|>",
     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"),
    ("llama3", "Llama 3 8B Instruct", "<|begin_of_text|>", "<|eot_id|>",
     "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + "
     "'<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
     "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"),
    ("mistral", "Mixtral 8x7B Instruct v0.1, December 2023", "<s>", "</s>", ALTERNATE.replace("BLANK", "")),
    ("mistral", "Mistral 7B Instruct v0.1, 2023", "<s>", "</s>", ALTERNATE.replace("BLANK", " + ' '")),
    ("deepseek-v2", "DeepSeek-V2 Chat", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
     "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}{% for message in messages %}"
     "{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + "
     "message['content'] + eos_token }}{% elif message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"),
]


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


def of_folder(name, folder):
    jinja, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    words = json.loads(config.read_text()) if config.exists() else {}
    text = jinja.read_text() if jinja.exists() else words["chat_template"]
    begin, end = (words.get(key) or "" for key in ("bos_token", "eos_token"))
    return name, str(folder), *(token["content"] if isinstance(token, dict) else token for token in (begin, end)), text


def theirs(begin, end, template, talk):
    """None where the template raises an error."""
    try:
        return render_jinja_template([talk], chat_template=template, add_generation_prompt=False, bos_token=begin, eos_token=end)[0][0]
    except TemplateError as error:
        print("   ", error)
        return None


def verdict(got, expected):
    if got is None or expected is None:
        return "refused by " + " and ".join(who for who, text in (("hetermoe", got), ("the template", expected)) if text is None)
    if got == expected:
        return "the same"
    # SentencePiece puts a blank before a text that follows a token; here texts become tokens one by one.
    if re.sub(r"(^<s>|</s>|\[/INST\]) ", r"\1", expected) == got:
        return "the same but for blanks that SentencePiece puts by itself"
    return f"OTHERWISE\n{got!r}\n{expected!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("templates", nargs="*", metavar="NAME=FOLDER")
    given = parser.parse_args()
    wrong = 0
    for name, model, begin, end, template in PUBLIC + [of_folder(name, Path(folder)) for name, folder in (pair.split("=", 1) for pair in given.templates)]:
        for what, talk in TALKS.items():
            if "tool" not in template and any("tool_calls" in message for message in talk):
                continue  # it drops calls, so there is nothing to compare with
            with tempfile.TemporaryDirectory() as work:
                got = ours(given.program, name, talk, Path(work))
            found = verdict(got, theirs(begin, end, template, talk))
            wrong += found.startswith("OTHERWISE")
            print(f"{name} ({model}): {what}: {found}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
