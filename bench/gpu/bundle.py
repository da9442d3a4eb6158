#!/usr/bin/env python3
"""Puts what runs on another machine into a folder that can be moved: programs, libraries beside them, configurations, and the
GPU benchmark. Nothing of torch is in it: the other machine has the same version.

usage: bundle.py SOURCE_DIR BUILD_DIR FOLDER      (./dev bundle FOLDER builds first)
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys

PROGRAMS = {"hetermoe_portable": "hetermoe", "test_cuda_portable": "test_cuda"}
# What every machine with Python and torch has by itself, and must be its own. All else goes along.
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|cuda))\.so.*")
MOST_BYTES = 60 * 2**20

# Finds torch's libraries, by the interpreter that has them or by its folder, and becomes the program.
WRAPPER = r"""#!/usr/bin/env bash
# usage: hetermoe [--python PYTHON | --torch-dir DIR] COMMAND ...    (PYTHON has torch; default: python3)
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
python=python3 torch=
case ${1:-} in
  --python) python=${2:?--python needs the name of an interpreter}; shift 2 ;;
  --torch-dir) torch=${2:?--torch-dir needs a folder}; shift 2 ;;
esac
find_torch='import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")'
[ -n "$torch" ] || torch=$("$python" -c "$find_torch") || torch=
[ -e "$torch/lib/libtorch_cpu.so" ] || {
  echo "no torch found: name an interpreter that has it (--python PYTHON) or its folder (--torch-dir DIR)" >&2
  exit 2
}
libraries=$torch/lib
for folder in "$torch/../torch.libs" "$torch"/../nvidia/*/lib; do
  if [ -d "$folder" ]; then libraries+=:$folder; fi
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
exec "$here/bin/hetermoe" "$@"
"""

BENCHMARK = """#!/usr/bin/env bash
# The benchmark of one GPU; --help lists its options.
exec python3 "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/bench/gpu/bench_gpu.py" "$@"
"""

RANKS = """#!/usr/bin/env bash
# Several ranks on one GPU, over NCCL; --help lists its options.
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
exec python3 "$here/tests/cuda/ranks.py" "$here/hetermoe" "$@"
"""


def libraries_of(program):
    """{name: path} of those that go along, with what these need themselves. Torch's are not found here: a portable program
    does not know where they are."""
    out = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", out, re.M))
    return {name: path for name, path in found.items() if not SYSTEM.fullmatch(name)}


def torch_version(build):
    """Of the wheel that the build was made with."""
    folder = re.search(r"^TORCH_DIR:PATH=(.*)$", (build / "CMakeCache.txt").read_text(), re.M)[1]
    return re.search(r"__version__ = '([^'+]*)", pathlib.Path(folder, "version.py").read_text())[1]


def commit_of(source):
    run = subprocess.run(["git", "-C", str(source), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return run.stdout.strip() or "unknown"


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)


def make(source, build, folder):
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "bundle.json").exists())):
        sys.exit(f"bundle: {folder} is there and no bundle: name another folder, or an empty one")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("bin", "lib"):
        (folder / name).mkdir(parents=True)
    for program, name in PROGRAMS.items():
        shutil.copy2(build / program, folder / "bin" / name)
        for library, path in libraries_of(build / program).items():
            shutil.copy2(path, folder / "lib" / library)
    shutil.copytree(source / "configs", folder / "configs")
    shutil.copytree(source / "tests" / "cuda", folder / "tests" / "cuda")
    shutil.copytree(source / "bench" / "gpu", folder / "bench" / "gpu", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(source / "LICENSE", folder)
    write_script(folder / "hetermoe", WRAPPER)
    write_script(folder / "bench-gpu", BENCHMARK)
    write_script(folder / "test-ranks", RANKS)
    (folder / "bundle.json").write_text(json.dumps({"commit": commit_of(source), "torch": torch_version(build)}) + "\n")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source, build, folder = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    make(source, build, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        sys.exit(f"bundle: {folder} has {size / 2**20:.0f} MiB, expected at most {MOST_BYTES / 2**20:.0f}")
    print(f"{folder}: {size / 2**20:.0f} MiB, for torch {json.loads((folder / 'bundle.json').read_text())['torch']}; "
          f"on the other machine: FOLDER/hetermoe --python PYTHON doctor, FOLDER/bench-gpu --python PYTHON, "
          f"FOLDER/test-ranks --python PYTHON")


if __name__ == "__main__":
    main()
