#!/usr/bin/env python3
"""Kills one of four processes of `hetermoe launch --replan --hostfile hosts -- mpirun hetermoe train` for good: the run
must go on with devices that are left, by a plan of the planner, from the newest checkpoint, and end with the weights of
a run that starts from that checkpoint with that plan, to the bit.

  tests/mpi/replan.py build/hetermoe [--rank 2]
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STEPS = 40
TIMEOUT = 240


def train_words(program, output):
    return [program, "train", "--model", "tiny", "--cluster", "demo", "--output", str(output),
            "--train.steps", str(STEPS), "--train.seq_len", "16", "--train.sequences", "4", "--train.microbatches", "2",
            "--train.validation_sequences", "0", "--data.max_bytes", "200000", "--checkpoint.every", "2",
            "--checkpoint.keep", "99"]


def tensors(folder):
    """Raw bytes of every tensor of a checkpoint, whatever files they are in."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                found[name] = data[8 + size + begin:8 + size + end]
    return found


def losses(output):
    return {row["step"]: row["loss"] for row in map(json.loads, (output / "metrics.jsonl").read_text().splitlines())}


def checkpoints(output):
    return sorted((output / "checkpoints").glob("step-*"))


def victim(rank):
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "comm").read_text().strip() != "hetermoe":
                continue
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment and ours(int(entry.name)):
            return int(entry.name)
    return None


def ours(process):
    """Whether a process descends from this one."""
    while process > 1:
        if process == os.getpid():
            return True
        process = int(pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return False


def run(words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)} failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def launch_and_kill(program, output, rank):
    """Runs until the end; kills the rank once, when there are two checkpoints. Returns what launch said."""
    hosts = output.parent / "hosts"
    hosts.write_text("# all on this machine\nlocalhost slots=4 type=A40\n")
    words = [program, "launch", "--restarts", "1", "--replan", "--pause", "0", "--hostfile", str(hosts), "--", "mpirun",
             "--allow-run-as-root", "--oversubscribe"] + train_words(program, output)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begin = time.monotonic()
    while len(checkpoints(output)) < 2 or (killed := victim(rank)) is None:
        if time.monotonic() - begin > TIMEOUT or process.poll() is not None:
            process.kill()
            sys.exit("no checkpoint came:\n" + process.communicate()[1][-3000:])
        time.sleep(0.01)
    os.kill(killed, signal.SIGKILL)
    try:
        _, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        sys.exit(f"hang: launch had not ended {TIMEOUT} s after the kill")
    if process.returncode != 0:
        sys.exit(f"launch failed with {process.returncode}:\n{err[-3000:]}")
    return err


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--rank", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        whole, lost, smaller = (pathlib.Path(name) / part for part in ("whole", "lost", "smaller"))
        run(train_words(args.program, whole))
        err = launch_and_kill(args.program, lost, args.rank)
        left = [d for d in range(4) if d != args.rank]
        if f"rank {args.rank} with device {args.rank} vanished: planned anew over device" not in err:
            sys.exit("launch did not name the lost device:\n" + err[-3000:])
        job = json.loads((lost / "job.json").read_text())
        plan = json.loads((lost / "plan.json").read_text())
        used = sorted(d for group in plan["groups"] for d in group["devices"])
        if not set(used) <= set(left):
            sys.exit(f"the last run used devices {used}, but only {left} are left")
        if not job["plan"]["file"]:
            sys.exit("the planner had no plan for the devices that are left:\n" + err[-3000:])
        # The same from its first checkpoint, in one process, with the plan for the devices that are left.
        said = (lost / "summary.json").read_text()
        first = json.loads(said)["rows"][0]["executed"]["first_step"]
        (smaller / "checkpoints").mkdir(parents=True)
        shutil.copytree(lost / "checkpoints" / f"step-{first:08}", smaller / "checkpoints" / f"step-{first:08}")
        run(train_words(args.program, smaller) + ["--plan.file", job["plan"]["file"]])
        end = f"checkpoints/step-{STEPS:08}"
        if tensors(lost / end) != tensors(smaller / end) or not tensors(lost / end):
            sys.exit("the weights differ from a run that starts from the checkpoint on the smaller cluster")
        a, b = losses(whole), losses(lost)
        worst = max(abs(a[step] - b[step]) for step in a)
        if len(b) != STEPS or worst > 1e-4:
            sys.exit(f"the losses have {len(b)} steps and are up to {worst} from those on four devices")
        print(f"rank {args.rank} killed, went on from step {first} on devices {used}: weights equal to the bit to a run "
              f"from that checkpoint, losses within {worst:.1e} of those on four devices")


if __name__ == "__main__":
    main()
