#!/usr/bin/env python3
"""What does recording the routing cost a training run? Runs the demo job without and with a routing trace in turn, several
times, and compares them round by round, in wall time and in CPU time of the process, which tells more on a busy machine.
Time is that of the steps: what a run without steps takes is taken off.

  bench/recording_cost.py [build/hetermoe] [--rounds 5] [--steps 60]
"""
import argparse
import datetime
import pathlib
import platform
import statistics
import tempfile

from checkpoint_cost import run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="build/hetermoe")
    parser.add_argument("--job", default="configs/jobs/demo.yaml")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    print(f"{platform.node()}, {platform.machine()}, {datetime.date.today()}, {options.job}, {options.steps} steps")
    more = []
    with tempfile.TemporaryDirectory() as folder:
        trace = pathlib.Path(folder) / "run.routes"
        for round_ in range(options.rounds):
            empty = run(options.program, options.job, 0, [])
            plain = run(options.program, options.job, options.steps, [])
            recorded = run(options.program, options.job, options.steps, ["--routing.record", str(trace)])
            wall, cpu = ((recorded[i] - plain[i]) / (plain[i] - empty[i]) for i in (0, 1))
            more.append((wall, cpu))
            print(f"round {round_ + 1}: step {1e3 * (plain[1] - empty[1]) / options.steps:.1f} ms of CPU, recorded "
                  f"{100 * cpu:+.2f} % CPU, {100 * wall:+.2f} % wall")
        print(f"trace: {trace.stat().st_size / options.steps / 1024:.1f} KiB a step")
    print(f"median: {100 * statistics.median(c for _, c in more):+.2f} % CPU, "
          f"{100 * statistics.median(w for w, _ in more):+.2f} % wall")


if __name__ == "__main__":
    main()
