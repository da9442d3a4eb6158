#!/usr/bin/env python3
"""Kills a random process of an mpirun of `hetermoe train` at random moments, lets it resume each time, and compares
the final weights, and what tokens each step read, with those of an undisturbed run: they must be equal to the bit. Says
at the end how often it killed, how many runs were completed, and how long the launcher took to end after a kill. With
--changes the run goes over to another plan before each step but the first, so that many kills hit it while parameters
move. With --balancer NAME experts may change owners before each step, by choices that a probe finds, and with relibra are
lent in each.

  tests/mpi/kill.py build/hetermoe [--kills 10] [--steps 40] [--seed 1] [--changes | --balancer NAME]
"""
# Claim (mpi.kill_balancing): runs that balance, killed at random moments, end with the bits of an undisturbed one
# ([result](results/kills_2026-11-22.md))
import argparse
import collections
import datetime
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

RANKS = 4
# An end within this time after a kill is no hang.
TIMEOUT = 120


def plan_files(program, folder):
    """A plan.json of each strategy."""
    files = []
    for strategy in ("ep", "zebra"):
        output = folder / strategy
        subprocess.run([program, "train", *job(output, 1), "--strategy", strategy], check=True, capture_output=True)
        files.append(output / "plan.json")
    return files


def changes(files, steps):
    return json.dumps([{"step": step, "plan": str(files[step % 2])} for step in range(2, steps + 1)])


def balancing(name):
    """However little a move or a guest saves."""
    return ["--balancer.name", name, "--balancer.every", "1", "--balancer.guard", "false",
            "--balancer.guest_cost", "0", "--balancer.knows", "foresight", "--balancer.probe", "true"]


def migration_share(output):
    """Part of the wall time of a run in which plans changed."""
    row = json.loads((output / "summary.json").read_text())["rows"][0]["executed"]
    steps = sum(json.loads(line)["wall_s"] for line in (output / "metrics.jsonl").read_text().splitlines())
    moves = sum(change["executed_s"] for change in row.get("changes", []))
    return moves / (moves + steps)


def job(output, steps):
    return ["--model", "tiny", "--cluster", "demo", "--output", str(output), "--train.steps", str(steps),
            "--train.seq_len", "16", "--train.sequences", "4", "--train.microbatches", "2",
            "--train.validation_sequences", "0", "--data.max_bytes", "200000", "--checkpoint.every", "2"]


def command(program, output, steps, extra):
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(RANKS), program, "train",
            *job(output, steps), "--strategy", "zebra", *extra]


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
    return sorted(found)


def kill_one(ranks, randomness):
    """Kills one of these processes and says which, None = there is none, or it had ended already."""
    if not ranks:
        return None
    rank = randomness.randrange(len(ranks))
    try:
        os.kill(ranks[rank], signal.SIGKILL)
    except ProcessLookupError:
        return None
    return rank


def finished(output, steps):
    return (output / "checkpoints" / f"step-{steps:08}" / "checkpoint.json").exists()


def weights(output, steps):
    folder = output / "checkpoints" / f"step-{steps:08}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def tokens(output):
    """What each step read, as a hash."""
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["tokens_hash"] for line in lines}


def check_equal(killed, whole, steps, kills):
    if weights(killed, steps) != weights(whole, steps):
        sys.exit(f"after {kills} kills the weights differ from the undisturbed run")
    if tokens(killed) != tokens(whole):
        sys.exit(f"after {kills} kills other tokens were read than in the undisturbed run")


def start(program, output, steps, log, extra):
    return subprocess.Popen(command(program, output, steps, extra), stdout=log, stderr=log, start_new_session=True)


def wait(process):
    try:
        return process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        sys.exit(f"hang: mpirun had not ended {TIMEOUT} s after a kill")


def newest_step(output):
    """Of the newest checkpoint, 0 = there is none."""
    return max((int(path.parent.name[5:]) for path in output.glob("checkpoints/step-*/checkpoint.json")), default=0)


def machine():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown processor")
    return f"{model}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[1]:.1f}, {datetime.date.today()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changes", action="store_true")
    parser.add_argument("--balancer", default="")
    args = parser.parse_args()
    randomness = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        whole, killed = pathlib.Path(name) / "whole", pathlib.Path(name) / "killed"
        extra = []
        if args.changes:
            extra = ["--train.changes", changes(plan_files(args.program, pathlib.Path(name)), args.steps)]
        if args.balancer:
            extra = balancing(args.balancer)
        with open(pathlib.Path(name) / "log", "w+") as log:
            begin = time.monotonic()
            if wait(start(args.program, whole, args.steps, log, extra)) != 0:
                log.seek(0)
                sys.exit("the undisturbed run failed:\n" + log.read())
            duration = time.monotonic() - begin
            if args.changes or args.balancer:
                print(f"parameters move during {100 * migration_share(whole):.0f} % of the steps' time")
            kills = resumes = 0
            victims, at_step, ends = collections.Counter(), collections.Counter(), []
            while kills < args.kills:
                process = start(args.program, killed, args.steps, log, extra)
                time.sleep(randomness.uniform(0.1, 0.95) * duration)
                step = newest_step(killed)
                rank = kill_one(ranks_of(process.pid), randomness)
                kill_time = time.monotonic()
                if rank is not None:
                    kills += 1
                    victims[rank] += 1
                    at_step[step] += 1
                wait(process)
                if rank is not None:
                    ends.append(time.monotonic() - kill_time)
                if finished(killed, args.steps):
                    check_equal(killed, whole, args.steps, kills)
                    resumes += 1
                    subprocess.run(["rm", "-rf", str(killed)], check=True)
            if wait(start(args.program, killed, args.steps, log, extra)) != 0:
                log.seek(0)
                sys.exit("the last resume failed:\n" + log.read()[-4000:])
            check_equal(killed, whole, args.steps, kills)
            print(f"{kills} kills, {resumes + 1} runs completed, weights and tokens read equal to the bit, no hang")
            print(f"seed {args.seed}, {args.steps} steps, {RANKS} ranks, an undisturbed run took {duration:.1f} s, all "
                  f"{time.monotonic() - begin:.0f} s")
            print("kills by rank: " + ", ".join(f"{rank}: {victims[rank]}" for rank in range(RANKS)))
            print("kills by newest checkpoint: " + ", ".join(f"{step}: {at_step[step]}" for step in sorted(at_step)))
            print(f"mpirun ended {statistics.median(ends):.2f} s (median) to {max(ends):.2f} s (longest) after a kill")
            print(machine())


if __name__ == "__main__":
    main()
