#!/usr/bin/env python3
"""Plans the requests of docs/results/advice_2026-11-26.md and prints a table of them.

usage: bench/advice.py [--program build/hetermoe] [WORD...]

With words: only rows whose description has all of them. CPU seconds are user time of one process.
"""
import argparse
import json
import pathlib
import resource
import subprocess
import tempfile

# A node: type, devices, Gbit/s of its network, GB/s inside.
H8 = ("H100", 8, 3200, 450)
A8 = ("A100-80", 8, 100, 300)
THREE = [("H100", 3, 400, 20), ("A100-80", 5, 400, 20), ("L4", 7, 100, 20)]
FOUR_EIGHT = [("H100", 4, 400, 450), ("A100-40", 8, 200, 300)]
SLOW = ("H100", 8, 10, 450)

# What, model, nodes, tokens of a sequence, sequences, dtype, other options.
ROWS = [
    ("8 H100", "qwen3-30b-a3b", [H8], 2048, 64, "bf16", []),
    ("8 H100, more sequences", "qwen3-30b-a3b", [H8], 2048, 512, "bf16", []),
    ("8 A100", "qwen3-30b-a3b", [A8], 2048, 64, "bf16", []),
    ("three types", "qwen3-30b-a3b", THREE, 2048, 64, "fp16", []),
    ("4 H100 + 8 A100-40", "qwen3-30b-a3b", FOUR_EIGHT, 4096, 256, "bf16", []),
    ("4 H100 + 8 A100-40", "deepseek-v2-lite", FOUR_EIGHT, 4096, 256, "bf16", []),
    ("6 A40 + 6 V100", "d1", "o1", 8192, 48, "fp16", []),
    ("6 A40 + 6 V100, short", "d1", "o1", 4096, 96, "fp16", []),
    ("three types of 32", "mixtral-8x7b", [H8] * 4 + [("A100-80", 8, 1600, 300)] * 4 + [("T4", 8, 100, 10)] * 4, 4096, 1024,
     "fp16", []),
    ("slow node first", "qwen3-30b-a3b", [SLOW] + [H8] * 3, 4096, 384, "bf16", []),
    ("slow node last", "qwen3-30b-a3b", [H8] * 3 + [SLOW], 4096, 384, "bf16", []),
    ("three good nodes", "qwen3-30b-a3b", [H8] * 3, 4096, 384, "bf16", []),
    ("64 H100", "mixtral-8x7b", [H8] * 8, 4096, 1024, "bf16", []),
    ("64 H100, one idle", "mixtral-8x7b", [H8] * 8, 4096, 1024, "bf16", ["--idle", "63"]),
    ("63 H100", "qwen3-30b-a3b", [H8] * 7 + [("H100", 7, 3200, 450)], 4096, 1024, "bf16", []),
    ("64 H100, odd number", "mixtral-8x7b", [H8] * 8, 2048, 509, "bf16", []),
    ("64 H100, even number", "mixtral-8x7b", [H8] * 8, 2048, 512, "bf16", []),
    ("128 + 128", "qwen3-30b-a3b", [H8] * 16 + [("A100-80", 8, 1600, 300)] * 16, 4096, 2048, "bf16", []),
    ("2,048 H100", "qwen3-30b-a3b", [H8] * 256, 2048, 4096, "bf16", []),
    ("2,048 H100", "llama-3.1-8b", [H8] * 256, 2048, 4096, "bf16", []),
    ("10,000 H100", "qwen3-30b-a3b", [H8] * 1250, 2048, 4096, "bf16", []),
    ("10,000 H100, fewer sequences", "qwen3-30b-a3b", [H8] * 1250, 2048, 4000, "bf16", []),
]


def cluster_file(folder, nodes):
    if isinstance(nodes, str):
        return nodes
    path = pathlib.Path(folder, "cluster.json")
    entries = [
        {"name": f"n{i}", "devices": [f"{kind} x{count}"], "network_gbit_s": network, "local_gb_s": local}
        for i, (kind, count, network, local) in enumerate(nodes)
    ]
    path.write_text(json.dumps({"name": "by_hand", "nodes": entries}))
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/hetermoe")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    print("| cluster | model | tokens x sequences | tokens/s | plan | CPU s |\n|---|---|---|---|---|---|")
    for what, model, nodes, seq, sequences, dtype, more in ROWS:
        if not all(word in what for word in options.words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            words = ["--model", model, "--cluster", cluster_file(folder, nodes), "--seq", seq, "--sequences", sequences]
            command = [options.program, "plan", *words, "--dtype", dtype, *more, "--json"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            got = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        if got.returncode != 0:
            print(f"| {what} | {model} | {seq} x {sequences} | no plan | {got.stderr.splitlines()[:1]} | {seconds:.1f} |", flush=True)
            continue
        best = json.loads(got.stdout)["candidates"][0]
        print(f"| {what} | {model} | {seq} x {sequences} | {best['tokens_per_s']:,.0f} | {best['name']} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
