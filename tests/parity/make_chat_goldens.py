#!/usr/bin/env python3
"""Writes tests/data/jinja/golden.json: what Jinja2, set up as transformers sets it up, makes of the templates in
tests/data/jinja/templates over random conversations, and of small random templates.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install transformers jinja2
  /tmp/venv/bin/python tests/parity/make_chat_goldens.py

A text is null where Jinja2 raises an error. The templates have the shapes of those that the models of docs/models.md come with.
"""
import json
import random
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

FOLDER = Path(__file__).resolve().parents[1] / "data/jinja"
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "tools": None, "documents": None}
WORDS = ["Hi", "naïve", "日本", "<b>", "'q'", "\"d\"", "a\\b", "\n", "\n\n", "  ", "\t", "x", "</think>", "<think>", "🎉", "ß", "{{ x }}", "'", "é "]
PIECES = [
    "a", "b", "n", "s", "t", "u", "l", "d", "m", "z", "none", "true", "false", "1", "2", "-3", "0", "2.5", "'x'", "'Ab c'", "\"\\n x \\t\"", "[1, 2, 3]",
    "['b', 'a']", "{'k': 1, 'q': [true, none]}", "()", "(1, 'x')", "missing", "1e16", "1e-7", "m[0].role", "d.k", "d['k']", "l[-1]", "s[1:]", "s[::-1]",
    "l[:-1]", "t[0]", "d.items()", "d.keys()", "d.get('k')", "d.get('no', 7)",
]
FILTERS = [
    "trim", "length", "upper", "lower", "tojson", "default('d')", "default('d', true)", "d(0)", "string", "list", "first", "last", "join(', ')", "int",
    "replace('a', 'bb')", "capitalize", "tojson(indent=2)", "count", "reverse | list", "map('string') | list", "select | list", "items | list",
    "map(attribute='role') | list", "selectattr('role', 'equalto', 'user') | list", "rejectattr('content') | list", "select('string') | list",
    "join", "tojson(separators=(',', ':'))", "trim('x')",
]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "boolean", "mapping", "iterable", "sequence", "true", "false", "float",
         "odd", "even", "in [1, 'x']", "eq(1)", "not none", "not string", "not defined", "divisibleby 2", "equalto 'x'", "lower"]
METHODS = ["strip()", "lstrip('\\n ')", "rstrip()", "split()", "split('a')", "split(' ', 1)", "startswith('A')", "endswith(('c', 'x'))", "upper()",
           "lower()", "title()", "replace('b', '')", "find('b')", "count('a')", "splitlines()", "capitalize()", "removeprefix('A')", "rsplit('a', 1)"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
CONTEXT = {
    "a": 3, "b": -7, "n": None, "s": " Añb c\n", "t": "xyz", "u": "ÄSTRAßE größer", "l": [3, 1, 2], "d": {"k": "v", "z": [1, 2.0, {"y": None}]},
    "z": [], "m": [{"role": "user", "content": "hey"}, {"role": "assistant", "content": None}],
}
SNIPPETS = [
    "{% if true %}\nx\n{% endif %}\ny", "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a {%- if true %} b {%- endif %} c", "a {%+ if true %}b{% endif +%}\nc",
    "  {{ 1 }}\n  {{- 2 -}}\n  x", "{# c #}\nx\n  {# d #}\ny", "{#- c -#}  x", "x  {%- set q = 1 -%}  y{{ q }}", "{{ 'a' 'b' }}", "{{ '\\u00e9\\x41\\101\\q' }}",
    "{% for i in range(3) %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% for i in l %}{% if x is defined %}again{% endif %}{% set x = i %}{% endfor %}",
    "{% macro f(a, b='q') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(b=3, a=4) }}{{ f() }}", "{% macro f() %}{{ s }}{% endmacro %}{{ f() | trim }}",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x }}", "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "{{ loop is defined }}", "{{ 1 if false }}x",
    "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}", "{{ not a == 3 }}", "{{ -a }}{{ - 2 + 5 }}", "{{ 7 // -2 }} {{ 7 % -2 }} {{ -7 // 2 }} {{ 6 / 2 }}", "{{ (1, 2) }}{{ (1,) }}{{ () }}",
    "{{ [1, 'a', none, true, 1.0, \"it's\", 'q\"'] }}", "{{ {'a': 1} }}", "{{ {'a': {}} }}", "{{ none }}{{ true }}{{ missing }}", "{{ missing.x }}", "{{ missing + 'a' }}",
    "{{ 'a' + 1 }}", "{{ raise_exception('no') }}", "{{ d.nothing }}", "{{ d.nothing.more }}", "{{ l[9] }}", "{{ s.nothing }}", "{{ l.append(1) }}", "{{ d.update({}) }}",
    "{% generation %}x{% set q = 1 %}{% endgeneration %}y", "{{ 'x' * 3 }}{{ 2 * 'ab' }}", "{{ a is not none and b }}", "{{ m[0]['role'] ~ m[-1].role }}", "{{ 'a' in d }}{{ 'k' in d }}",
    "{% for c in 'añ' %}{{ c }}.{% endfor %}", "{{ m | map(attribute='content') | list }}", "{{ range(1, 10, 3) | list }}{{ range(3, 0, -1) | list }}", "{{ u | upper }}{{ u.title() }}",
    "{% for i in l %}{{ loop.previtem }}-{{ loop.nextitem }}-{{ loop.revindex }}-{{ loop.cycle('a', 'b') }} {% endfor %}", "{{ '%}' }}{{ '}}' }}", "{% if '%}' %}a{% endif %}", "{{ 1.0 }}{{ 1e20 }}{{ 0.1 + 0.2 }}",
    "{% for a in l %}{% for b in l %}{{ loop.index0 }}{% endfor %}{{ loop.index }}{% endfor %}", "{{ s | replace('b', 1) }}", "{{ dict(a=1).a }}", "{{ true + 1 }}{{ 1 == 1.0 }}{{ 1 == true }}{{ '1' == 1 }}",
    "a\r\n{% if true %}\r\nb{% endif %}", "{{ 'a\nb' }}", "{% set x = [1] + [2] %}{{ x }}", "{{ l == [3, 1, 2] }}{{ (1,) == [1] }}", "{{ 'b' > 'a' }}{{ 1 > 'a' }}", "{{ d | length }}{{ missing | length }}{{ n | length }}",
]


def text(rng, think=True):
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 5))]
    return "".join(words) if rng.random() < 0.8 else f"<think>\n{words[0]}\n</think>\n\n{''.join(words[1:])}"


def call(rng):
    arguments = {rng.choice("abc"): rng.choice([1, 2.5, None, True, "x\n\"é", [1, {"q": {}}], 1e-7]) for _ in range(rng.randint(0, 3))}
    return {"type": "function", "id": f"functions.f:{rng.randint(0, 9)}", "function": {"name": rng.choice(["f", "go"]), "arguments": arguments}}


def conversation(rng):
    talk = [{"role": "system", "content": text(rng)}] if rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 3)):
        talk.append({"role": "user", "content": text(rng)})
        if rng.random() < 0.3:
            calls = [call(rng) for _ in range(rng.randint(1, 2))]
            talk.append({"role": "assistant", "content": rng.choice([None, text(rng)]), "tool_calls": calls})
            talk += [{"role": "tool", "content": text(rng), "tool_call_id": c["id"]} for c in calls]
        answer = {"role": "assistant", "content": text(rng)}
        if rng.random() < 0.3:
            answer["reasoning_content"] = text(rng)
        talk.append(answer)
    return talk


def expression(rng, depth):
    if depth == 0:
        return rng.choice(PIECES)
    inner = lambda: expression(rng, depth - 1)
    return rng.choice([
        lambda: f"{inner()} {rng.choice(OPERATORS)} {inner()}", lambda: f"({inner()}) | {rng.choice(FILTERS)}", lambda: f"{inner()} | {rng.choice(FILTERS)}",
        lambda: f"({inner()}) is {rng.choice(TESTS)}", lambda: f"{inner()} is {rng.choice(TESTS)}", lambda: f"not {inner()}", lambda: f"{inner()} if {inner()} else {inner()}",
        lambda: f"({inner()}).{rng.choice(METHODS)}", lambda: f"({inner()})[{rng.choice(['0', '-1', '1:', '::-1', ':2', '-2:', chr(39) + 'k' + chr(39)])}]",
        lambda: f"[{inner()}, {inner()}]", lambda: f"({inner()}) {rng.choice(OPERATORS)} ({inner()})",
    ])()


def render(template, names, optimized=True):
    try:
        made = _compile_jinja_template(template)
        return (made if optimized else made.environment.overlay(optimized=False).from_string(template)).render(**names)
    except Exception:  # what the template or Python refuses
        return None


def is_fair(snippet, out):
    """No address is in it, and Jinja2's own evaluation of constants, which allows more, changes nothing."""
    at_run_time = "{% set made = " + snippet[3:-3] + " %}{{ made }}"
    return (out is None or "object at 0x" not in out) and render(at_run_time, CONTEXT, optimized=False) == out


def write():
    rng = random.Random(11)
    talks = [conversation(rng) for _ in range(24)]
    golden = {"names": NAMES, "talks": talks, "templates": {}, "context": CONTEXT, "snippets": []}
    for path in sorted((FOLDER / "templates").glob("*.jinja")):
        source = path.read_text()
        golden["templates"][path.stem] = [[render(source, {**NAMES, "messages": talk, "add_generation_prompt": ask}) for ask in (False, True)]
                                          for talk in talks]
    snippets = ["{{ " + expression(rng, rng.choice([1, 1, 2, 2, 3])) + " }}" for _ in range(1500)]
    golden["snippets"] = [[snippet, render(snippet, CONTEXT)] for snippet in SNIPPETS]
    golden["snippets"] += [[snippet, out] for snippet in snippets for out in [render(snippet, CONTEXT)] if is_fair(snippet, out)]
    (FOLDER / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=0) + "\n")
    texts = [t for pairs in golden["templates"].values() for pair in pairs for t in pair]
    print(f"{len(texts)} texts ({texts.count(None)} errors), {len(golden['snippets'])} snippets ({sum(o is None for _, o in golden['snippets'])} errors)")


if __name__ == "__main__":
    write()
