#!/usr/bin/env python3
"""Adds a transfer, a compute op and a buffer to a copy of the program: without their rows it does not build, and the
error names what is missing; with them it simulates and executes a schedule that has them.

usage: tests/planted_kinds.py SOURCE_DIR PROGRAM [--folder KEEP]

PROGRAM is hetermoe as it is: losses must stay what they are. Compiles the whole program once (./dev check-all).
"""
import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def run(command, cwd=None, code=0):
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True)
    if code is not None and done.returncode != code:
        sys.exit(f"{command}: exit code {done.returncode}, expected {code}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout + done.stderr


def check(good, what):
    if not good:
        sys.exit(f"planted_kinds: {what}")


def insert(path, after, text):
    source = path.read_text()
    check(source.count(after) == 1, f"{path.name} has not one {after!r}")
    path.write_text(source.replace(after, after + text))


def build(copy):
    return run(["cmake", "--build", copy / "build", "--target", "hetermoe", "--", "-k", "0"], code=None)


def losses(program, job, folder):
    run([program, "train", job, "--train.steps", 3, "--output", folder])
    return [json.loads(line).get("loss") for line in (folder / "metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, help="works here and leaves it")
    options = parser.parse_args()
    source = options.source.resolve()
    folder = options.folder or pathlib.Path(tempfile.mkdtemp())
    copy = folder / "copy"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", "build", "build-*", "out", ".venv"))
    if (source / ".venv").exists():
        (copy / ".venv").symlink_to(source / ".venv")

    insert(copy / "hetermoe/placement/op.h", "  X(kSettle, settle)", " \\\n  X(kPlantedSum, planted_sum) \\\n  X(kPlantedPass, planted_pass)")
    insert(copy / "hetermoe/ops/buffers.h", "  kGuestGrad      ///< gradients of these experts", "\n  , kPlanted")
    run([copy / "dev", "build", "release", "hm_base"], cwd=copy)  # configures
    told = build(copy)
    check("kBufferRows has a row for each Buffer" in told, f"a buffer without a row is not named:\n{told[-3000:]}")

    insert(copy / "hetermoe/ops/buffers.cpp", "CountsAs::kGradients, guest_gradients},\n", '    {Buffer::kPlanted, "planted", KeyShape::kOfStep},\n')
    insert(copy / "hetermoe/exec/slots.cpp", "    case Buffer::kSlot:\n", "    case Buffer::kPlanted:\n")
    told = build(copy)
    for name in ("op_rows::planted_sum", "op_rows::planted_pass", "exec_ops::planted_sum", "exec_ops::planted_pass"):
        check(re.search(rf"undefined reference to `hetermoe::{name}", told), f"the linker does not name {name}:\n{told[-3000:]}")

    shutil.copy(source / "tests/planted/ops.cpp", copy / "hetermoe/ops/planted.cpp")
    shutil.copy(source / "tests/planted/exec.cpp", copy / "hetermoe/exec/ops/planted.cpp")
    told = build(copy)
    program = copy / "build/hetermoe"
    check(program.exists(), f"it does not build with its rows:\n{told[-3000:]}")
    job = source / "configs/jobs/demo.yaml"
    run([program, "simulate", job, "--output", folder / "simulated"])
    text = (folder / "simulated/schedule.txt").read_text()
    check("planted_sum" in text and "planted_pass" in text, "the simulated schedule lacks them")
    before, after = losses(options.program.resolve(), job, folder / "before"), losses(program, job, folder / "after")
    check(before == after and len(after) >= 3, f"losses {after}, expected {before}")
    check("planted_sum" in (folder / "after/timeline.json").read_text(), "the executed steps lack them")
    print("planted kinds: refused without rows, simulated and executed with them")
    if not options.folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
