#!/usr/bin/env python3
"""Kills a random process of an mpirun of `hetermoe train` at random moments, lets it resume each time, and compares
the final weights with those of an undisturbed run: they must be equal to the bit.

  tests/mpi/kill.py build/hetermoe [--kills 10] [--seed 1]
"""
import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

RANKS = 4
# An end within this time after a kill is no hang.
TIMEOUT = 120


def command(program, output, steps):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(RANKS), program, "train", "--model", "tiny",
            "--cluster", "demo", "--strategy", "zebra", "--output", str(output), "--train.steps", str(steps),
            "--train.seq_len", "16", "--train.sequences", "4", "--train.microbatches", "2",
            "--train.validation_sequences", "0", "--data.max_bytes", "200000", "--checkpoint.every", "2"]


def ranks_of(launcher):
    """Process ids of the ranks: children of mpirun."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if int(fields[1]) == launcher and name == "hetermoe":
            found.append(int(entry.name))
    return found


def finished(output, steps):
    return (output / "checkpoints" / f"step-{steps:08}" / "checkpoint.json").exists()


def weights(output, steps):
    folder = output / "checkpoints" / f"step-{steps:08}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def start(program, output, steps, log):
    return subprocess.Popen(command(program, output, steps), stdout=log, stderr=log, start_new_session=True)


def wait(process):
    try:
        return process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        sys.exit(f"hang: mpirun had not ended {TIMEOUT} s after a kill")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    randomness = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        whole, killed = pathlib.Path(name) / "whole", pathlib.Path(name) / "killed"
        with open(pathlib.Path(name) / "log", "w+") as log:
            begin = time.monotonic()
            if wait(start(args.program, whole, args.steps, log)) != 0:
                log.seek(0)
                sys.exit("the undisturbed run failed:\n" + log.read())
            duration = time.monotonic() - begin
            kills = resumes = 0
            while kills < args.kills:
                process = start(args.program, killed, args.steps, log)
                time.sleep(randomness.uniform(0.1, 0.95) * duration)
                ranks = ranks_of(process.pid)
                if ranks:
                    os.kill(randomness.choice(ranks), signal.SIGKILL)
                    kills += 1
                wait(process)
                if finished(killed, args.steps):
                    if weights(killed, args.steps) != weights(whole, args.steps):
                        sys.exit(f"after {kills} kills the weights differ from the undisturbed run")
                    resumes += 1
                    subprocess.run(["rm", "-rf", str(killed)], check=True)
            if wait(start(args.program, killed, args.steps, log)) != 0:
                log.seek(0)
                sys.exit("the last resume failed:\n" + log.read()[-4000:])
            if weights(killed, args.steps) != weights(whole, args.steps):
                sys.exit(f"after {kills} kills the weights differ from the undisturbed run")
            print(f"{kills} kills, {resumes + 1} runs completed, weights equal to the bit, no hang")


if __name__ == "__main__":
    main()
