#!/usr/bin/env python3
"""How fast a large checkpoint is converted, and in how much memory: a synthetic Mixtral folder in shards.

usage: convert_checkpoint.py HETERMOE [--layers 20] [--work out/convert] [--to /dev/shm/convert]

Four figures: plain reading of the files (cold: the page cache is dropped first, which takes root), `hetermoe convert` from cold files to --to
(in memory, so that the disk only reads), the same with --verify, and the peak memory of each (mapped pages of the files count).
The bound is twice the largest shard and one tensor.
"""
import argparse
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

HIDDEN, INNER, EXPERTS, VOCAB = 1024, 2048, 8, 32000
MOST = 500_000_000  # bytes of a shard


def tensors(layers):
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for layer in range(layers):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", [HIDDEN]
        for name, rows in (("q", 1024), ("k", 256), ("v", 256), ("o", 1024)):
            yield f"{p}self_attn.{name}_proj.weight", [rows, HIDDEN]
        yield p + "post_attention_layernorm.weight", [HIDDEN]
        yield p + "block_sparse_moe.gate.weight", [EXPERTS, HIDDEN]
        for e in range(EXPERTS):
            for name, shape in (("w1", [INNER, HIDDEN]), ("w3", [INNER, HIDDEN]), ("w2", [HIDDEN, INNER])):
                yield f"{p}block_sparse_moe.experts.{e}.{name}.weight", shape
    yield "model.norm.weight", [HIDDEN]
    yield "lm_head.weight", [VOCAB, HIDDEN]


def write_shard(path, entries, block):
    head, at = {}, 0
    for name, shape in entries:
        size = 2 * math.prod(shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        while at > 0:
            at -= out.write(block[:at])
        out.flush()
        os.fsync(out.fileno())


def make(folder, layers):
    """Returns the bytes of all files, of the largest, and of the largest tensor."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    draw = random.Random(1)
    block = b"".join(struct.pack("<H", 0x3C00 | draw.getrandbits(7) | draw.getrandbits(1) << 15) for _ in range(1 << 19))
    shards, size = [[]], 0
    for entry in tensors(layers):
        more = 2 * math.prod(entry[1])
        if size + more > MOST:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += more
    names = {}
    for i, entries in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(folder / file, entries, block)
        names.update({name: file for name, _ in entries})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": layers, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "router_aux_loss_coef": 0.01,
        "torch_dtype": "bfloat16"}))
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    return sum(sizes), max(sizes), max(2 * math.prod(shape) for _, shape in tensors(1))


def drop_caches():
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def plain_read(folder):
    drop_caches()
    begin = time.monotonic()
    for file in sorted(folder.glob("*.safetensors")):
        with open(file, "rb", buffering=0) as source:
            while source.read(1 << 24):
                pass
    return time.monotonic() - begin


def convert(program, folder, to, *more):
    """Seconds and peak bytes."""
    shutil.rmtree(to, ignore_errors=True)
    drop_caches()
    begin = time.monotonic()
    child = subprocess.Popen([program, "convert", str(folder), str(to), "--shard-gb", str(MOST / 1e9), *more], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"convert ended with {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - begin, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--work", default="out/convert")
    parser.add_argument("--to", default="/dev/shm/convert")
    given = parser.parse_args()
    folder, to = Path(given.work), Path(given.to)
    total, largest, tensor = make(folder, given.layers)
    bound = 2 * largest + tensor
    plain = plain_read(folder)
    print(f"{total / 1e9:.2f} GB in shards of at most {largest / 1e9:.2f} GB; bound of memory {bound / 1e9:.2f} GB")
    print(f"plain reading: {plain:.1f} s, {total / plain / 1e9:.2f} GB/s")
    wrong = False
    for name, more in (("convert", ()), ("convert --verify", ("--verify",)), ("convert --dtype fp16", ("--dtype", "fp16")),
                       ("convert --layout fused", ("--layout", "fused"))):
        seconds, peak = convert(given.program, folder, to, *more)
        wrong |= peak >= bound
        print(f"{name}: {seconds:.1f} s, {total / seconds / 1e9:.2f} GB/s, {plain / seconds:.0%} of plain reading; peak {peak / 1e9:.2f} GB", flush=True)
    shutil.rmtree(to)
    shutil.rmtree(folder)
    sys.exit("beyond the bound" if wrong else 0)


if __name__ == "__main__":
    main()
