#!/usr/bin/env python3
"""Puts what runs on another machine into a folder that can be moved: programs, libraries beside them, configurations, and the
GPU benchmark. Nothing of torch is in it: the other machine has the same version.

usage: bundle.py SOURCE_DIR BUILD_DIR FOLDER      (./dev bundle FOLDER builds first)
"""
import pathlib
import shutil
import sys

import portable

PROGRAMS = {"hetermoe_portable": "hetermoe", "test_cuda_portable": "test_cuda"}
MOST_BYTES = 60 * 2**20

STARTER = r"""#!/usr/bin/env bash
# usage: hetermoe [--python PYTHON | --torch-dir DIR] COMMAND ...    (PYTHON has torch; default: python3)
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
python=python3
if [ "${1:-}" = --python ]; then python=${2:?needs the name of an interpreter}; shift 2; fi
exec "$python" -B "$here/program.py" --called "$0" "$@"
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


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)


def make(source, build, folder):
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / "bundle.json").exists())):
        sys.exit(f"bundle: {folder} is there and no bundle: name another folder, or an empty one")
    shutil.rmtree(folder, ignore_errors=True)
    portable.put(source, build, folder, PROGRAMS)
    shutil.copytree(source / "tests" / "cuda", folder / "tests" / "cuda")
    shutil.copytree(source / "bench" / "gpu", folder / "bench" / "gpu", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(source / "LICENSE", folder)
    write_script(folder / "hetermoe", STARTER)
    write_script(folder / "bench-gpu", BENCHMARK)
    write_script(folder / "test-ranks", RANKS)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    source, build, folder = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    make(source, build, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        sys.exit(f"bundle: {folder} has {size / 2**20:.0f} MiB, expected at most {MOST_BYTES / 2**20:.0f}")
    print(f"{folder}: {size / 2**20:.0f} MiB, for torch {portable.torch_of(build)}; "
          f"on the other machine: FOLDER/hetermoe --python PYTHON doctor, FOLDER/bench-gpu --python PYTHON, "
          f"FOLDER/test-ranks --python PYTHON")


if __name__ == "__main__":
    main()
