#!/usr/bin/env python3
"""Several ranks on one GPU, over real NCCL: each plan trains in fp32 with the losses and gradient norms of one process, to
the bit; a rank that is killed or stopped ends the others, who all name it. Needs Python 3.8 alone.

  tests/cuda/ranks.py build/hetermoe                         # ./dev test-gpu does it
  FOLDER/test-ranks --python /opt/torch/bin/python           # from what ./dev bundle FOLDER made
  tests/cuda/ranks.py build/hetermoe --only zebra,kill       # some cases; --list names all
  tests/cuda/ranks.py build/hetermoe --device cpu            # the same over mpirun: shows that the script works
  tests/cuda/ranks.py build/hetermoe --dry-run               # prints the commands

NCCL refuses two ranks on one GPU of one host, and tells hosts by NCCL_HOSTID: so each rank counts as a host of its own, and
its messages go through sockets. Times mean nothing: the ranks take turns on the GPU.
"""
import argparse
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

STEPS = 6
LIMIT = 180  # seconds of a run
SILENCE = 10  # run.silence_s of the cases in which a rank dies
VICTIM = 2
STRATEGIES = ["ep", "ep-overlap", "dist-ep", "zebra", "pp-ep", "pp-zebra", "af-pipe", "sp-ep"]
BALANCER = ["--balancer.every", 1, "--balancer.guard", "false", "--balancer.knows", "foresight", "--balancer.probe", "true"]
# Words of a job beside the strategy's.
VARIANTS = {
    "zebra-emulated": ["--strategy", "zebra", "--clock.kind", "virtual"],
    "balancer": ["--strategy", "zebra", "--balancer.name", "lpt", *BALANCER],
    "guests": ["--strategy", "ep", "--balancer.name", "relibra", "--balancer.guest_cost", 0, *BALANCER],
    "shard-optimizer": ["--strategy", "ep", "--plan.shard_optimizer", "true"],
    "shard-weights": ["--strategy", "ep", "--plan.shard_weights", "true"],
    "growth": ["--strategy", "ep", "--checkpoint.every", STEPS // 2, "--grow.at", STEPS // 2],
}
# What the notes of such a run must say, so that a case cannot pass without what it is about.
NOTES = {"balancer": "took over", "guests": "took over", "growth": "grows from 4 to 8 experts", "changes": "took over",
         "resume": "goes on from"}


class Fault(Exception):
    """What is wrong with a case, in one line."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="build/hetermoe")
    parser.add_argument("--python", default="", help="interpreter with torch, for the program of a bundle")
    parser.add_argument("--torch-dir", default="", help="the torch package, for the program of a bundle")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu: then mpirun starts the ranks")
    parser.add_argument("--only", default="", help="cases, separated by commas")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    return parser.parse_args()


class Ranks:
    """How a run is started, alone and with several ranks."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        which = [words for words in (["--python", args.python], ["--torch-dir", args.torch_dir]) if words[1]]
        self.program = [args.program, *(which[0] if which else [])]
        self.on_cpu = args.device == "cpu"
        self.clusters = {devices: self.cluster(devices) for devices in (2, 4)}

    def cluster(self, devices):
        """A file of newer and older devices, which have the memory of the GPU here: any rank may be any of them."""
        gpu = {} if self.args.dry_run or self.on_cpu else self.gpu()
        kinds = [{"name": name, "like": like, "fp32_tflops": tflops, **gpu} for name, like, tflops in
                 (("New", "A40", 30), ("Old", "V100", 10))]
        nodes = [{"name": kind["name"], "devices": [f"{kind['name']} x{devices // 2}"]} for kind in kinds]
        path = self.folder / f"cluster-{devices}.json"
        path.write_text(json.dumps({"name": "ranks", "network_gbit_s": 10, "device_types": kinds, "nodes": nodes}))
        return path

    def gpu(self):
        found = json.loads(subprocess.run([*self.program, "doctor", "--json"], capture_output=True, text=True, check=True).stdout)
        for gpu in found["gpu"]["devices"]:
            if gpu["device"] == self.args.device:
                return {"memory_gib": gpu["memory_bytes"] / 2**30, "compute_capability": float(gpu["compute_capability"])}
        print(f"no GPU here: {found['gpu']['description']}")
        sys.exit(0)

    def words(self, output, more, devices=4):
        dtype = [word for part in ("attention", "expert", "wire") for word in (f"--plan.{part}_dtype", "fp32")]
        words = [*self.program, "train", "--model", "tiny", "--cluster", self.clusters[devices], "--output", output, *dtype,
                 "--train.steps", STEPS, "--train.seq_len", 16, "--train.sequences", 8, "--train.microbatches", 2,
                 "--train.validation_sequences", 0, "--data.max_bytes", 200000, "--clock.threads", 1, "--run.device",
                 self.args.device, *([] if "--clock.kind" in more else ["--clock.kind", "real"]), *more]
        return [str(word) for word in words]

    def commands(self, words, num_ranks):
        """[(words, variables)] of the processes that are started."""
        if num_ranks == 1:
            return [(words, {})]
        if self.on_cpu:
            return [(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(num_ranks), *words], {})]
        port = str(free_port())
        return [(words, {"RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": port, "NCCL_HOSTID": f"host{r}", "NCCL_SOCKET_IFNAME": "lo"}) for r in range(num_ranks)]

    def start(self, words, num_ranks, log):
        """The processes; what process r says goes to LOG-r."""
        processes = []
        for r, (command, variables) in enumerate(self.commands(words, num_ranks)):
            with open(f"{log}-{r}", "w") as out:
                processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                  env={**os.environ, **variables}))
        return processes

    def run(self, name, more, num_ranks, devices=4, output=None):
        """The output folder of a run that has to succeed; None in a dry run."""
        output = output or self.folder / f"{name}-{num_ranks}"
        words = self.words(output, more, devices)
        if self.args.dry_run:
            for command, variables in self.commands(words, num_ranks):
                print(shlex.join([*(f"{key}={value}" for key, value in variables.items()), *command]))
            return None
        log = self.folder / f"{name}-{num_ranks}.log"
        processes = self.start(words, num_ranks, log)
        codes = wait(processes, LIMIT)
        for r, code in enumerate(codes):
            if code != 0:
                raise Fault(f"{name} with {num_ranks} processes: process {r} ended with {code}:\n{tail(f'{log}-{r}')}")
        return output


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def tail(path):
    return pathlib.Path(path).read_text()[-3000:]


def end(processes):
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM if process.args[0] == "mpirun" else signal.SIGKILL)
    for process in processes:
        process.wait()


def wait(processes, limit):
    """Exit codes; those that have not ended after the limit are killed."""
    last = time.monotonic() + limit
    try:
        for process in processes:
            process.wait(max(0.1, last - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        running = [r for r, process in enumerate(processes) if process.poll() is None]
        end(processes)
    if running:
        raise Fault(f"hang: process {', '.join(map(str, running))} had not ended after {limit} s")
    return [process.returncode for process in processes]


def records(output):
    """Figures of each step in which runs must agree to the bit."""
    rows = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: (row["loss"], row["grad_norm"]) for row in rows}


def compare(name, alone, together):
    """Both None in a dry run."""
    if alone is None:
        return
    expected, got = records(alone), records(together)
    if len(expected) < STEPS:
        raise Fault(f"{name}: {len(expected)} steps, expected {STEPS}")
    notes = json.loads((together / "summary.json").read_text())["rows"][0]["executed"]["notes"]
    if not any(NOTES.get(name, "") in note for note in [*notes, ""]):
        raise Fault(f"{name}: no note has \"{NOTES[name]}\": {notes}")
    for step, figures in expected.items():
        if got.get(step) != figures:
            raise Fault(f"{name}, step {step}: 4 ranks have loss and norm {got.get(step)}, one process {figures}")


# ---- cases ----


def equals_one_process(ranks, name, more):
    compare(name, ranks.run(name, more, 1), ranks.run(name, more, 4))


def changes_plan(ranks, name):
    """Zebra in the odd steps, ep in the even ones."""
    plans = [ranks.folder / f"{strategy}.json" for strategy in ("zebra", "ep")]
    for plan in plans:
        made = ranks.run(f"{name}-{plan.stem}", ["--strategy", plan.stem, "--train.steps", 1], 1)
        if made is not None:
            shutil.copy(made / "plan.json", plan)
    changes = [{"step": step, "plan": str(plans[(step + 1) % 2])} for step in range(2, STEPS + 1)]
    equals_one_process(ranks, name, ["--strategy", "zebra", "--train.changes", json.dumps(changes)])


def resumes(ranks, name):
    """Half of the steps on four devices, the others on two."""
    more = ["--strategy", "zebra", "--checkpoint.every", STEPS // 2]
    outputs = []
    for first, second in ((1, 1), (4, 2)):
        output = ranks.folder / f"{name}-{first}-{second}"
        ranks.run(f"{name}-first", [*more, "--train.steps", STEPS // 2], first, output=output)
        outputs.append(ranks.run(f"{name}-second", more, second, devices=2, output=output))
    compare(name, *outputs)


def hits(ranks, name, number):
    """In the middle of a run a rank gets a signal. All others end and name it."""
    if ranks.on_cpu:
        raise Skip("mpirun ends the ranks by itself")
    words = ranks.words(ranks.folder / name, ["--strategy", "zebra", "--train.steps", 100000, "--run.silence_s", SILENCE])
    if ranks.args.dry_run:
        return print(f"... --run.silence_s {SILENCE}, then signal {number} to rank {VICTIM}")
    log = ranks.folder / f"{name}.log"
    processes = ranks.start(words, 4, log)
    try:
        await_steps(processes, ranks.folder / name / "metrics.jsonl", log)
        os.kill(processes[VICTIM].pid, number)
        others = [process for r, process in enumerate(processes) if r != VICTIM]
        begin = time.monotonic()
        codes = wait(others, 3 * SILENCE)
        print(f"  the others ended after {time.monotonic() - begin:.1f} s")
    finally:
        end(processes)
    words = f"[rank {VICTIM} on {socket.gethostname()}] is dead or cut off"
    for r, code in zip((r for r in range(4) if r != VICTIM), codes):
        if code != 1 or words not in tail(f"{log}-{r}"):
            raise Fault(f"rank {r} ended with {code}, expected 1 and \"{words}\" in what it says:\n{tail(f'{log}-{r}')}")


def await_steps(processes, metrics, log):
    last = time.monotonic() + LIMIT
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        for r, process in enumerate(processes):
            if process.poll() is not None:
                raise Fault(f"rank {r} ended with {process.returncode} before it was hit:\n{tail(f'{log}-{r}')}")
        if time.monotonic() > last:
            raise Fault(f"no three steps within {LIMIT} s:\n{tail(f'{log}-0')}")
        time.sleep(0.1)


class Skip(Exception):
    """Why a case is left out."""


def cases(ranks):
    out = {name: lambda name=name: equals_one_process(ranks, name, ["--strategy", name]) for name in STRATEGIES}
    out.update({name: lambda name=name, more=more: equals_one_process(ranks, name, more) for name, more in VARIANTS.items()})
    out["changes"] = lambda: changes_plan(ranks, "changes")
    out["resume"] = lambda: resumes(ranks, "resume")
    out["kill"] = lambda: hits(ranks, "kill", signal.SIGKILL)
    out["stop"] = lambda: hits(ranks, "stop", signal.SIGSTOP)
    return out


def main():
    args = arguments()
    failed, passed = [], 0
    with tempfile.TemporaryDirectory() as name:
        all_cases = cases(Ranks(args, pathlib.Path(name))) if not args.list else cases(None)
        if args.list:
            return print("\n".join(all_cases))
        wanted = args.only.split(",") if args.only else list(all_cases)
        for case in wanted:
            if case not in all_cases:
                sys.exit(f"--only: no case {case}, expected some of {', '.join(all_cases)}")
            begin = time.monotonic()
            try:
                all_cases[case]()
                passed += 1
                print(f"{case}: passed in {time.monotonic() - begin:.1f} s", flush=True)
            except Skip as why:
                print(f"{case}: left out, {why}", flush=True)
            except Fault as why:
                failed.append(case)
                print(f"{case}: FAILED: {why}", flush=True)
    print(f"{passed} of {len(wanted)} cases passed" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
