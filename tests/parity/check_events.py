#!/usr/bin/env python3
"""TensorBoard reads the event files of a run, and finds in them what metrics.jsonl says. Not run by the tests: they need no Python
packages. docs/report.md says when it was run.

  python3 -m venv /tmp/tb && /tmp/tb/bin/pip install tensorboard setuptools
  /tmp/tb/bin/python tests/parity/check_events.py build/hetermoe       # prints a table, ends with 1 when something is wrong

A run over two sources stops after 6 of 12 steps and goes on.
"""
# Claim (tests/parity/check_events.py): TensorBoard reads the event files; run by hand ([report.md](report.md))
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorboard
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

WANTED = ["loss", "learning_rate", "grad_norm", "tokens_per_s", "expert_max_over_mean", "attention_wait", "expert_wait",
          "peak_memory_bytes", "validation_loss", "validation_losses/a.txt", "mfu/A40/1000", "mfu/V100/1000", "memory_bytes/A40/1000#0", "layer_0/cv",
          "layer_3/max_over_mean", "time_ratio", "aux_loss", "step_s"]


def run(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")


def scalars(value, before=""):
    """The numbers of a line of metrics under TensorBoard's names."""
    for name, inside in value.items():
        if name in ("step", "layer"):
            continue
        if isinstance(inside, bool):
            continue
        if isinstance(inside, (int, float)):
            yield before + name, float(inside)
        elif isinstance(inside, dict):
            yield from scalars(inside, f"{before}{name}/")
        elif name == "layers":
            for layer in inside:
                yield from scalars(layer, f"layer_{layer['layer']}/")


def train(program, work):
    for name, text in {"a.txt": "abcdefgh" * 600, "b.txt": "the quick brown fox " * 200}.items():
        (work / name).write_text(text)
    words = ["train", "--model", "demo", "--cluster", "demo", "--strategy", "zebra", "--data.paths", f"{work}/a.txt,{work}/b.txt",
             "--data.weights", "1,1",             "--train.sequences", 8, "--train.seq_len", 32, "--train.microbatches", 2, "--train.validate_every", 3,
             "--train.validation_sequences", 8, "--clock.kind", "virtual", "--checkpoint.every", 6, "--output", work / "run"]
    run(program, *words, "--train.steps", 6)
    run(program, *words, "--train.steps", 12)


def main():
    program = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        train(program, work)
        lines = [json.loads(line) for line in (work / "run/metrics.jsonl").read_text().splitlines()]
        events = EventAccumulator(str(work / "run/tensorboard"), size_guidance={SCALARS: 0})
        events.Reload()
        tags = events.Tags()["scalars"]
        wrong = [f"{tag} is missing" for tag in WANTED if tag not in tags]
        want = {}
        for line in lines:
            for name, value in scalars(line):
                want.setdefault(name, []).append((line["step"], value))
        if [line["step"] for line in lines] != list(range(1, 13)):
            wrong.append(f"metrics.jsonl has steps {[line['step'] for line in lines]}")
        for name in sorted(set(want) ^ set(tags)):
            wrong.append(f"{name} is only in {'metrics.jsonl' if name in want else 'the event file'}")
        for name in sorted(set(want) & set(tags)):
            got = [(event.step, event.value) for event in events.Scalars(name)]
            same = len(got) == len(want[name]) and all(
                a[0] == b[0] and math.isclose(a[1], b[1], rel_tol=1e-6, abs_tol=1e-30) for a, b in zip(got, want[name]))
            if not same:
                wrong.append(f"{name}: {got} instead of {want[name]}")
    print(f"tensorboard {tensorboard.__version__}: {len(tags)} tags over {len(lines)} steps, all wanted: {', '.join(WANTED)}")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
