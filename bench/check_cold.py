#!/usr/bin/env python3
"""How long do demo, tests and check take on a new machine? Runs them in fresh clones with a compiler cache that is empty at first,
and prints the times of each part.

    python3 bench/check_cold.py                        # `./dev demo`: what is installed, what is compiled, the run itself
    python3 bench/check_cold.py demo test              # then `./dev test` in the same clone
    python3 bench/check_cold.py check warm             # `./dev check`, then once more in another clone with the cache of the first
    python3 bench/check_cold.py --venv .venv ...       # an installed torch is used: its installation is not in the times

CPU is user + system time of all children, which other work on the machine changes little; CPU / cores is what the part would
take alone on so many cores, if it kept them all busy.
"""
import argparse
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = {
    "demo": [("setup", ["./dev", "setup", "program"]), ("build", ["./dev", "build", "release", "hetermoe"]), ("run", ["./dev", "demo"])],
    "test": [("test", ["./dev", "test"])],
    "check": [("check", ["./dev", "check"])],
    "warm": [("check", ["./dev", "check"])],
}


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pip_cache():
    """Bytes of pip's cache before the run: wheels that are in it are not downloaded."""
    found = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True)
    folder = pathlib.Path(found.stdout.strip()) if found.returncode == 0 and found.stdout.strip() else None
    if folder is None or not folder.is_dir():
        return 0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(parts, clone, cache, log):
    environment = dict(os.environ, CCACHE_DIR=str(cache))
    rows = []
    for name, command in parts:
        begin, cpu = time.monotonic(), cpu_seconds()
        done = subprocess.run(command, cwd=clone, env=environment, stdout=log, stderr=subprocess.STDOUT)
        rows.append((name, time.monotonic() - begin, cpu_seconds() - cpu))
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed with code {done.returncode}: see {log.name}")
        print(f"{name:6} {rows[-1][1]:7.0f} s wall {rows[-1][2]:7.0f} s CPU", flush=True)
    return rows


def new_clone(folder, venv):
    clone = folder / "hetermoe"
    if clone.exists():
        shutil.rmtree(clone)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    if venv:
        (clone / ".venv").symlink_to(pathlib.Path(venv).resolve())
    return clone


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["demo"], metavar="demo|test|check|warm", help="in this order; default: demo")
    parser.add_argument("--venv", help="use this virtual environment with torch instead of installing one")
    parser.add_argument("--keep", action="store_true", help="keep the clone")
    options = parser.parse_args()
    for what in options.what:
        if what not in PARTS:
            parser.error(f"got {what}, expected one of {', '.join(PARTS)}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hetermoe_cold_"))
    clone = new_clone(folder, options.venv)
    cores = len(os.sched_getaffinity(0))
    commit = subprocess.run(["git", "describe", "--always"], cwd=clone, capture_output=True, text=True).stdout.strip()
    torch = "torch was there" if options.venv else f"torch installed, {pip_cache() / 2**20:.0f} MiB in pip's cache before"
    print(f"commit {commit}, {cores} cores, load {os.getloadavg()[0]:.1f} at the start; packages of the system as they are; {torch}")
    for what in options.what:
        if what == "warm":
            clone = new_clone(folder, options.venv)
        print(f"{what}:")
        with open(folder / f"{what}.log", "w") as log:
            rows = measure(PARTS[what], clone, folder / "cache", log)
        wall, cpu = sum(row[1] for row in rows), sum(row[2] for row in rows)
        print(f"all    {wall:7.0f} s wall {cpu:7.0f} s CPU, which is {cpu / cores / 60:.1f} minutes of {cores} cores")
    if options.keep:
        print(f"kept in {folder}")
    else:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
