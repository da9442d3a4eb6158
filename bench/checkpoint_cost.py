#!/usr/bin/env python3
"""What do checkpoints cost a training run? Runs the demo job without checkpoints, with asynchronous and with synchronous
ones, in turn, several times, and compares them round by round. Time is that of the steps: what a run without steps takes is
taken off. CPU time is that of the process and its threads, and tells more than wall time on a busy machine. Peak memory is
what the process had resident at most.

  bench/checkpoint_cost.py [build/hetermoe] [--rounds 5] [--steps 60] [--every 10] [--set model=large.json ...]
"""
import argparse
import datetime
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time


def run(program, job, steps, extra):
    """Wall and CPU seconds of a run, the bytes of its checkpoints, and the most that it had resident."""
    with tempfile.TemporaryDirectory() as folder:
        words = [program, "train", job, "--json", "--output", folder, "--train.steps", str(steps),
                 "--train.validation_sequences", "0"] + extra
        begin = time.monotonic()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - begin
        if status != 0:
            raise SystemExit(f"failed: {' '.join(words)}")
        size = sum(path.stat().st_size for path in pathlib.Path(folder).glob("checkpoints/*/*"))
        return wall, usage.ru_utime + usage.ru_stime, size, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="build/hetermoe")
    parser.add_argument("--job", default="configs/jobs/demo.yaml")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further keys of the job")
    args = parser.parse_args()
    more = [word for pair in args.set for word in ("--" + pair.split("=", 1)[0], pair.split("=", 1)[1])]
    every = ["--checkpoint.every", str(args.every), "--checkpoint.keep", "1"]
    kinds = {"none": [], "asynchronous": every, "synchronous": every + ["--no-checkpoint.async"]}
    wall, cpu = {kind: [] for kind in kinds}, {kind: [] for kind in kinds}
    size, peak = 0, dict.fromkeys(kinds, 0)
    for number in range(args.rounds):
        start = run(args.program, args.job, 0, more)
        # Each kind is first as often as the others.
        order = list(kinds)[number % len(kinds):] + list(kinds)[:number % len(kinds)]
        for kind in order:
            one = run(args.program, args.job, args.steps, more + kinds[kind])
            wall[kind].append(one[0] - start[0])
            cpu[kind].append(one[1] - start[1])
            size, peak[kind] = max(size, one[2]), max(peak[kind], one[3])
    print(f"{args.job}, {args.steps} steps, a checkpoint of {size / 2**20:.1f} MiB every {args.every}, {args.rounds} rounds; "
          f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[1]:.1f}, {datetime.date.today()}")
    print("medians; in brackets the lowest and the highest ratio of a round to the run without checkpoints in it")
    print(f"{'checkpoints':<14}{'wall s':>9}{'':>26}{'CPU s':>9}{'':>26}{'peak MiB':>10}")
    for kind in kinds:
        print(f"{kind:<14}{statistics.median(wall[kind]):>9.2f}{over(wall, kind):>26}"
              f"{statistics.median(cpu[kind]):>9.2f}{over(cpu, kind):>26}{peak[kind] / 2**20:>10.0f}")


def over(values, kind):
    """Median and range of the rounds' ratios."""
    if kind == "none":
        return ""
    ratios = [100 * (a / b - 1) for a, b in zip(values[kind], values["none"])]
    return f"{statistics.median(ratios):+.1f} % ({min(ratios):+.0f} to {max(ratios):+.0f})"


if __name__ == "__main__":
    main()
