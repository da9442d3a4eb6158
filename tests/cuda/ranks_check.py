#!/usr/bin/env python3
"""ranks.py finds what it is there to find, without a GPU: processes that meet at a store and train nothing (store_rank) stand
in for the program. A killed and a stopped rank that all others name pass, one for which another rank is blamed does not.

usage: ranks_check.py SOURCE_DIR BUILD_DIR
"""
import pathlib
import subprocess
import sys
import tempfile

# Says that there is a GPU; as a rank it tells of three steps a while after its start, and lives until a rank is gone.
PROGRAM = """#!/usr/bin/env python3
import json, os, pathlib, sys, time
if sys.argv[1] == "doctor":
    gpu = {{"device": "cuda:0", "memory_bytes": 8e10, "compute_capability": "9.0"}}
    print(json.dumps({{"gpu": {{"description": "one", "devices": [gpu]}}}}))
    sys.exit(0)
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
rank = os.environ["RANK"]
if rank == "0" and os.fork() == 0:
    time.sleep({delay})
    folder = pathlib.Path(words["--output"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("step\\n" * 3)
    os._exit(0)
last = "{of_rank_1}" if rank == "1" else "sleep=600"
os.execv("{store_rank}", ["store_rank", "60", "60", words["--run.silence_s"], "process", last])
"""


def run(source, build, cases, of_rank_1):
    """What ranks.py prints, and its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder, "program")
        program.write_text(PROGRAM.format(delay=8, of_rank_1=of_rank_1, store_rank=build / "store_rank"))
        program.chmod(0o755)
        got = subprocess.run([sys.executable, source / "tests/cuda/ranks.py", program, "--only", cases], capture_output=True,
                             text=True, timeout=300)
        return got.stdout + got.stderr, got.returncode


def main():
    source, build = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    for cases, of_rank_1, code, words in (
            ("kill,stop", "sleep=600", 0, "2 of 2 cases passed"),
            ("kill", "transfer=2", 0, "1 of 1 cases passed"),
            ("kill", "blame=2", 1, "rank 0 ended with 1, expected 1 and \"[rank 2 on ")):
        output, got = run(source, build, cases, of_rank_1)
        if got != code or words not in output:
            sys.exit(f"{cases}, rank 1 does {of_rank_1}: exit code {got}, expected {code} and {words}:\n{output}")
    print("ranks.py passes and fails as it should")


if __name__ == "__main__":
    main()
