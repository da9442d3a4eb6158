#!/usr/bin/env python3
"""Trains every pair of features for a few steps, kills it, resumes it, and compares it with a run that nobody killed.

    tests/train/pairs.py build/hetermoe                         # every strategy with every feature, every two features
    tests/train/pairs.py build/hetermoe --sample 12             # so many of the pairs, always the same
    tests/train/pairs.py build/hetermoe --only af-pipe          # pairs that have this strategy or feature
    tests/train/pairs.py build/hetermoe --table FILE            # writes the table, too

A pair is trained, killed by SIGKILL in mid-run, resumed, and every step has the same loss as in the run that went through;
or the program refuses it before the first step by one sentence. Everything else is a fault: the script then ends with 1.
"""
# Claim (pairs): in `check-all` every strategy with every feature, and every two features: trained, killed, resumed,
# the losses equal; or refused by a sentence before the first step ([results](results/pairs_2026-11-28.md))
import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS = 5
STRATEGIES = ["single", "ep", "ep-overlap", "dist-ep", "zebra", "pp-ep", "pp-zebra", "af-pipe", "sp-ep", "roundpipe"]
BASE = {"model": "tiny", "train.steps": STEPS, "train.seq_len": 8, "train.sequences": 8, "train.microbatches": 2,
        "checkpoint.every": 1, "train.warmup_steps": 0}
FEATURES = {
    "offload": {"plan.offload": "[all]"},
    "saved on hosts": {"plan.offload": "[saved]"},
    "staleness": {"train.staleness": 1, "plan.offload": "[all]"},
    "lpt": {"balancer.name": "lpt", "balancer.every": 1, "balancer.guard": "false"},
    "eplb": {"balancer.name": "eplb", "balancer.every": 2, "balancer.guard": "false", "balancer.replicas": 4},
    "guests": {"balancer.name": "relibra", "balancer.every": 2, "balancer.guard": "false"},
    "foresight": {"balancer.name": "relibra", "balancer.every": 2, "balancer.knows": "foresight", "balancer.probe": "true"},
    "tally": {"plan.tally": "true"},
    "growth": {"grow.at": 3, "grow.factor": 2},
    "LoRA": {"train.lora.rank": 2},
    "frozen": {"train.freeze": '["model.embed_tokens*", "model.layers.0.*"]'},
    "change of plan": {"train.changes": "[{step: 3, plan: EP_PLAN}]"},
    "recording": {"routing.record": "OUTPUT.trace"},
    "replay": {"routing.replay": "EP_TRACE"},
    "sharded optimizer": {"plan.shard_optimizer": "true"},
    "sharded weights": {"plan.shard_weights": "true"},
    "masked documents": {"data.documents": "masked"},
    "weights after": {"plan.weight_gradients": "after"},
    "select": {"plan.recompute": "select"},
    "combine to next": {"plan.combine_to": "next"},
    "rows by node": {"plan.node_dedup": "true"},
    "bf16": {"plan.attention_dtype": "bf16", "plan.expert_dtype": "bf16", "plan.wire_dtype": "bf16"},
    "fp8 rows": {"plan.wire_dtype": "fp8_row"},
    "fp8 groups": {"plan.wire_dtype": "fp8_row", "plan.wire_backward": "fp8_group"},
    "bf16 sums": {"plan.wire_reduce": "bf16"},
    "error feedback": {"plan.wire_reduce": "bf16", "plan.error_feedback": "true"},
    "capacity": {"train.capacity_factor": 1.0},
    "teams": {"plan.team": "[2]"},
    "heads in parts": {"plan.team": "[2]", "plan.head_parts": "2"},
    "two processes": {},
}
# Two features are tried on zebra, unless one of them does nothing there.
STRATEGY_OF = {"combine to next": "af-pipe"}
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


SENTENCE = re.compile(r"(rank \d+: )?\[[a-z][^:]*?\] ")  # not what mpirun says of itself: [host:1234]


class Clash(Exception):
    """Two features want different values of one key."""


def merged(*parts):
    out = {}
    for part in parts:
        for key, value in part.items():
            if key == "plan.offload" and key in out and out[key] != value:
                out[key] = "[all]" if "[all]" in (out[key], value) else "[optimizer, saved]"
            elif out.setdefault(key, value) != value:
                raise Clash(f"{key} is {out[key]} and {value}")
    return out


class Runner:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.cluster = folder / "cluster.yaml"
        text = (ROOT / "configs/clusters/demo-hosts.yaml").read_text()
        one_node = "nodes:\n  - {name: all, devices: [A40/1000 x2, V100/1000 x2], local_gb_s: 0.56, local_latency_us: 5}\n"
        self.cluster.write_text(text[:text.index("nodes:")] + one_node)
        self.data = folder / "text.txt"
        words = random.Random(1)
        self.data.write_text("\n\n".join(" ".join(words.choice(["old", "new", "card", "expert", "row"]) for _ in range(12))
                                         for _ in range(400)))

    def prepare(self):
        output = self.folder / "first"
        code, text = self.run({"strategy": "ep", "routing.record": str(self.folder / "ep.trace")}, output)
        if code != 0:
            sys.exit(f"the run that makes a trace and a plan ended with {code}:\n{text}")

    def command(self, keys, output):
        places = {"EP_PLAN": str(self.folder / "first/plan.json"), "EP_TRACE": str(self.folder / "ep.trace"),
                  "OUTPUT": str(output)}
        command = [self.program, "train", "--cluster", str(self.cluster), "--output", str(output),
                   "--data.paths", f"[{self.data}]"]
        for key, value in merged(BASE, keys).items():
            text = str(value)
            for name, place in places.items():
                text = text.replace(name, place)
            command += [f"--{key}", text]
        return command

    def start(self, keys, output, two):
        environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", **MPI)
        command = self.command(keys, output)
        if two:
            command = ["mpirun", "-np", "2", *command]
        log = open(f"{output}.log", "w")
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT,
                                start_new_session=True)

    def run(self, keys, output, two=False):
        process = self.start(keys, output, two)
        try:
            code = process.wait(timeout=180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = "timeout"
        return code, pathlib.Path(f"{output}.log").read_text()

    def run_killed(self, keys, output, two):
        """Killed when two steps are there. False when it was faster."""
        process = self.start(keys, output, two)
        end = time.monotonic() + 180
        while process.poll() is None and time.monotonic() < end:
            if len(losses(output)) >= 2:
                break
            time.sleep(0.005)
        was_running = process.poll() is None
        if was_running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(0.2 if two else 0)
        return was_running


def losses(output):
    """{step: (loss, auxiliary loss)} of the steps that a run has written."""
    found = {}
    try:
        lines = (pathlib.Path(output) / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # killed in mid-line
        if "step" in row and "loss" in row:
            found[row["step"]] = (row["loss"], row.get("aux_loss"))
    return found


def refusal(code, text):
    """The sentence by which the program refused the run; None when it did not."""
    if code != 2:
        return None
    lines = [line for line in text.splitlines() if SENTENCE.match(line)]
    return lines[0] if lines else None


def try_pair(runner, number, names, keys, two):
    output = runner.folder / f"pair{number}"
    whole, killed = pathlib.Path(f"{output}.whole"), pathlib.Path(f"{output}.killed")
    code, text = runner.run(keys, whole, two)
    refused = refusal(code, text)
    if refused and not losses(whole):
        return "refused", refused
    if code != 0:
        return "FAULT", f"ended with {code}: " + " / ".join(text.splitlines()[-4:])
    expected = losses(whole)
    if len(expected) != STEPS:
        return "FAULT", f"{len(expected)} of {STEPS} steps in metrics.jsonl"
    was_killed = runner.run_killed(keys, killed, two)
    code, text = runner.run(keys, killed, two)
    if code != 0:
        return "FAULT", f"resumed run ended with {code}: " + " / ".join(text.splitlines()[-4:])
    got = losses(killed)
    if got != expected:
        differing = [step for step in expected if got.get(step) != expected[step]]
        return "FAULT", f"steps {differing} differ after resuming: {got} instead of {expected}"
    for path in (whole, killed):
        shutil.rmtree(path, ignore_errors=True)
    return "equal", "" if was_killed else "ended before it was killed"


def all_pairs():
    pairs = [(strategy, feature) for strategy in STRATEGIES for feature in FEATURES]
    pairs += list(itertools.combinations(FEATURES, 2))
    return pairs


def keys_of(pair):
    keys, two = [], False
    strategy = next((STRATEGY_OF[name] for name in pair if name in STRATEGY_OF), "zebra")
    for name in pair:
        if name in STRATEGIES:
            strategy = name
        else:
            keys.append(FEATURES[name])
            two = two or name == "two processes"
    return merged({"strategy": strategy}, *keys), two


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--only", help="pairs with this strategy or feature")
    parser.add_argument("--sample", type=int, help="so many of the pairs")
    parser.add_argument("--table", help="a file for the table")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs")
    options = parser.parse_args()
    pairs = [pair for pair in all_pairs() if options.only in (None, *pair)]
    if not shutil.which("mpirun"):
        pairs = [pair for pair in pairs if "two processes" not in pair]
    if options.sample:
        pairs = random.Random(5).sample(pairs, min(options.sample, len(pairs)))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hetermoe_pairs_"))
    runner = Runner(str(pathlib.Path(options.program).resolve()), folder)
    runner.prepare()
    rows = []
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        futures = {}
        for number, pair in enumerate(pairs):
            try:
                keys, two = keys_of(pair)
            except Clash as clash:
                rows.append((pair, "one of both", str(clash)))
                continue
            futures[pool.submit(try_pair, runner, number, pair, keys, two)] = pair
        for future in concurrent.futures.as_completed(futures):
            pair = futures[future]
            result, detail = future.result()
            rows.append((pair, result, detail))
            print(f"{result:12} {' + '.join(pair)}{': ' if detail else ''}{detail}", flush=True)
    faults = [row for row in rows if row[1] == "FAULT"]
    counts = {result: sum(1 for row in rows if row[1] == result) for result in ("equal", "refused", "one of both", "FAULT")}
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    if options.table:
        with open(options.table, "w") as out:
            for pair, result, detail in sorted(rows):
                out.write(f"| {pair[0]} | {pair[1]} | {result} | {detail} |\n")
    if options.keep or faults:
        print(f"logs in {folder}")
    else:
        shutil.rmtree(folder)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
