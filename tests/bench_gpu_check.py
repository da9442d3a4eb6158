#!/usr/bin/env python3
"""What ./dev bundle makes: it is moved, and runs doctor, plan and the benchmark there, on a CPU with a tiny model.

usage: bench_gpu_check.py SOURCE_DIR BUILD_DIR TORCH_DIR
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import empty_root


def run(command, code=0, **options):
    got = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if got.returncode != code:
        sys.exit(f"{command}: exit code {got.returncode}, expected {code}\n{got.stdout}{got.stderr}")
    return got.stdout


def check(condition, what):
    if not condition:
        sys.exit(f"bench_gpu_check: {what}")


def check_result(result):
    check(not result["failed"], f"failed: {result['failed']}")
    check(any("need a GPU" in why for why in result["left_out"]), "the missing GPU is not named")
    check(result["seconds"] < 480, "it took more than eight minutes")
    entry = result["models"]["tiny"]
    check(len(entry["ours"]) == 2 and entry["best"] in entry["ours"], "two rounds of hetermoe")
    check(entry["best"]["tokens_per_s"] == 2 * 64 / entry["best"]["step_s"], "the speed")
    check(entry["best"]["peak_bytes"] > 1e6, "the memory")
    error = entry["predicted"]["step_s"] / entry["best"]["step_s"] - 1
    check(entry["prediction_error"] == error, "the error of the prediction")
    ops = entry["best"]["ops_s"]
    check({"attention.F", "attention.B", "experts.F", "experts.B", "head", "update"} <= set(ops), f"ops: {sorted(ops)}")
    check(entry["predicted"]["ops_s"]["attention.B"] > 0, "predicted ops")


def check_libraries(bundle, torch, env):
    """Every library is the bundle's, torch's, or one of the system's that all machines have."""
    folders = [torch / "lib", torch.parent / "torch.libs", *torch.parent.glob("nvidia/*/lib")]
    env = env | {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
    own = re.compile(r"ld-linux.*|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|cuda)\.so.*")
    for program in (bundle / "bin").iterdir():
        for line in run(["ldd", program], env=env).splitlines():
            name, _, place = line.strip().partition(" => ")
            path = os.path.normpath(place.split(" (")[0])
            fine = not place or own.fullmatch(name) or any(pathlib.Path(path).is_relative_to(f) for f in [bundle / "lib", *folders])
            check(fine and "not found" not in place, f"{program.name} takes {name} from {path}")
            check("gomp" not in name or pathlib.Path(path).is_relative_to(torch.parent), f"{program.name} takes {name} from {path}")


def check_in_empty_root(bundle, torch, system, folder):
    """Beside Python, torch and the libraries of a bare system the bundle needs nothing."""
    if not empty_root.can_be_made():
        print("skipped: the bundle in an empty root, for this machine forbids mounts (unshare --mount)")
        return
    root = empty_root.EmptyRoot(folder, torch, system)
    shutil.copytree(bundle, folder / "bundle")
    program = ["/bundle/hetermoe", "--python", root.python, "--torch-dir", torch]

    def runs(*words):
        got = root.run([*program, *words])
        check(got.returncode == 0, f"in an empty root, {words}: {got.stdout}{got.stderr}")
        return got.stdout

    doctor = json.loads(runs("doctor", "--json"))
    check(doctor["configs"]["folder"] == "/bundle/configs", f"configurations of {doctor['configs']['folder']}")
    runs("plan", "--model", "demo", "--cluster", "demo", "--seq", "64", "--sequences", "16")
    trained = runs("train", "--model", "tiny", "--cluster", "one", "--strategy", "single", "--train.steps", "2", "--train.seq_len",
                   "32", "--data.paths", "/bundle/LICENSE", "--output", "/tmp/run")
    check("report: /tmp/run/report.html" in trained, f"the run: {trained}")
    # The root is empty enough: without its own libraries the program does not start.
    (folder / "bundle" / "lib").rename(folder / "bundle" / "away")
    got = root.run([*program, "--version"])
    check(got.returncode == 127 and "error while loading shared libraries" in got.stderr, f"without its libraries: {got}")


def main():
    source, build, torch = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    run(["cmake", "--build", build, "--target", "hetermoe_portable", "test_cuda_portable"])  # one of before knows other files
    with tempfile.TemporaryDirectory() as folder:
        made, moved = pathlib.Path(folder, "made"), pathlib.Path(folder, "elsewhere", "moved")
        run([sys.executable, source / "tools/bundle.py", source, build, made])
        moved.parent.mkdir()
        shutil.move(str(made), str(moved))
        clean = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
        check_libraries(moved, torch, clean)
        program = [moved / "hetermoe", "--torch-dir", torch]
        doctor = json.loads(run([*program, "doctor", "--json"], env=clean, cwd=folder))
        check(doctor["configs"]["folder"] == str(moved / "configs"), f"configurations of {doctor['configs']['folder']}")
        check(not doctor["mpi"]["available"], "the bundle asks for MPI")
        run([*program, "plan", "--model", "demo", "--cluster", "demo", "--seq", 64, "--sequences", 16], env=clean, cwd=folder)
        run([moved / "hetermoe", "--torch-dir", folder, "doctor"], code=2, env=clean)
        ranks = [moved / "test-ranks", "--torch-dir", torch]
        check("NCCL_HOSTID=host3" in run([*ranks, "--dry-run", "--only", "zebra"], env=clean), "the ranks of test-ranks")
        check("no GPU here" in run(ranks, env=clean), "test-ranks does not name the missing GPU")
        out = pathlib.Path(folder, "results")
        benchmark = [moved / "bench-gpu", "--torch-dir", torch, "--out", out, "--device", "cpu", "--models"]
        run([*benchmark, "tiny", "--steps", 4, "--variants", "none"], env=clean, cwd=folder)
        check_result(json.loads((out / "bench_gpu.json").read_text()))
        check("| attention.F |" in (out / "bench_gpu.md").read_text(), "the table of ops")
        # A part that fails is named, and the others go on.
        run([*benchmark, "nowhere,tiny", "--steps", 2, "--rounds", 1, "--variants", "none", "--skip", "profile"], code=1,
            env=clean, cwd=folder)
        result = json.loads((out / "bench_gpu.json").read_text())
        check(any(why.startswith("nowhere") for why in result["failed"]), f"failed: {result['failed']}")
        check(len(result["models"]["tiny"]["ours"]) == 1, "the model after one that is missing")
        # Without time everything is left out, and nothing fails.
        run([*benchmark, "tiny", "--budget", 0], env=clean, cwd=folder)
        check(json.loads((out / "bench_gpu.json").read_text())["left_out"][0].startswith("doctor: no time"), "the time")
        sys.path.insert(0, str(source / "tools"))
        import portable
        check_in_empty_root(moved, torch, portable.SYSTEM, pathlib.Path(folder, "root"))
    print("the bundle runs where it was moved to")


if __name__ == "__main__":
    main()
