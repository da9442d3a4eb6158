#!/usr/bin/env python3
"""Trains a small Mixtral with Hugging Face transformers and with hetermoe, alternately in one run: same initial
weights, data, threads, dtype and optimizer. Prints medians, ratios, the share of the sgemm peak measured in between,
peak memory and the losses of both, which must agree.

  bench/peers/peers.py                       # config S, 2 threads
  bench/peers/peers.py --config m --threads 1 --rounds 5 --best
  bench/peers/peers.py --processes 2 --threads 1

It makes its own environment in .venv-peers (PyPI: torch, transformers) the first time.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-peers"
PACKAGES = ["torch==2.11.0", "transformers==5.23.0", "accelerate==1.12.0", "numpy", "safetensors"]
SHAPES = {"s": dict(seq_len=256, sequences=8), "m": dict(seq_len=512, sequences=4)}
ADAMW = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
SEED = 1


def ensure_environment():
    if pathlib.Path(sys.prefix) == VENV:
        return
    python = VENV / "bin" / "python"
    ready = VENV / "ready"
    if not ready.exists() or ready.read_text() != " ".join(PACKAGES):
        print("making .venv-peers (several GB from PyPI)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        ready.write_text(" ".join(PACKAGES))
    os.execv(python, [str(python), *sys.argv])


# ---- hetermoe's data order, written once more ----

MASK64 = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def permute(x, half_bits, key):
    mask = (1 << half_bits) - 1
    left, right = x >> half_bits, x & mask
    for number in range(6):
        left, right = right, left ^ (mix(key ^ mix(right * 8 + number)) & mask)
    return left << half_bits | right


def window_of(index, num_windows):
    half_bits = 1
    while (1 << 2 * half_bits) < num_windows:
        half_bits += 1
    key = mix(SEED ^ mix(index // num_windows))
    window = index % num_windows
    while True:
        window = permute(window, half_bits, key)
        if window < num_windows:
            return window


# ---- the two trainers ----


def hetermoe(args, folder, steps, learning_rate, extra=()):
    shape = SHAPES[args.config]
    out = folder / "hetermoe"
    shutil.rmtree(out, ignore_errors=True)
    command = [str(ROOT / "build" / "hetermoe"), "train", "--model", str(ROOT / "configs/models" / f"{args.config}.json"),
               "--cluster", str(folder / "cluster.yaml"), "--strategy", "single" if args.processes == 1 else "ep",
               "--output", str(out), "--data.paths", str(folder / "text"), "--data.max_bytes", "100000000",
               "--train.steps", str(steps), "--train.warmup_steps", "0", "--train.final_share", "1",
               "--train.sequences", str(shape["sequences"]), "--train.seq_len", str(shape["seq_len"]),
               "--train.microbatches", "1", "--train.aux_group", "0", "--train.learning_rate", str(learning_rate),
               "--train.validation_sequences", "0", "--plan.recompute", "off", "--clock.threads", str(args.threads), *extra]
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
               OMPI_MCA_btl_vader_single_copy_mechanism="none")
    if args.processes > 1:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(args.processes), *command]
    if subprocess.run(command, env=env, stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"hetermoe failed: {' '.join(command)}")
    records = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return {"losses": [r["loss"] for r in records], "seconds": [r["wall_s"] for r in records],
            "memory": records[-1]["peak_memory_bytes"]}


def peer_process(args):
    """Runs in processes of its own: transformers, as its users call it."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    folder, shape = pathlib.Path(args.folder), SHAPES[args.config]
    text = (folder / "text").read_bytes()
    text = text[:len(text) - int(0.05 * len(text))]  # hetermoe keeps the end for validation
    num_windows = (len(text) - 1) // shape["seq_len"]
    rank, options = 0, {}
    if args.processes > 1:
        from transformers.distributed import DistributedConfig
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        options["distributed_config"] = DistributedConfig(fsdp_size=args.processes, ep_size=args.processes)
    model = AutoModelForCausalLM.from_pretrained(folder / "weights", dtype=torch.float32, attn_implementation="sdpa",
                                                 **options)
    model.train()
    if args.compile:
        model = torch.compile(model)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], fused=True, **ADAMW)
    losses, seconds, index = [], [], 0
    own = shape["sequences"] // args.processes
    for _ in range(args.steps):
        rows = []
        for _ in range(shape["sequences"]):
            begin = window_of(index, num_windows) * shape["seq_len"]
            rows.append(list(text[begin:begin + shape["seq_len"] + 1]))
            index += 1
        batch = torch.tensor(rows[rank * own:(rank + 1) * own])
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            out = model(input_ids=batch[:, :-1], output_router_logits=True, use_cache=False)
            loss = F.cross_entropy(out.logits.float().flatten(0, 1), batch[:, 1:].flatten())
        (loss + model.config.router_aux_loss_coef * out.aux_loss).backward()
        clip(model, args.processes)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        loss = loss.detach()
        if args.processes > 1:
            dist.all_reduce(loss)
            loss /= args.processes
        losses.append(loss.item())
    if rank == 0:
        (folder / "peer.json").write_text(json.dumps({"losses": losses, "seconds": seconds,
                                                      "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
    if args.processes > 1:
        dist.destroy_process_group()


def clip(model, processes):
    """Scales the gradients to a norm of at most 1, over all processes."""
    import torch
    if processes == 1:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return
    # The parameters are split over two meshes, which libtorch's own function refuses to mix.
    parts = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in model.parameters()]
    squares = torch.stack([part.pow(2).sum() for part in parts]).sum()
    torch.distributed.all_reduce(squares)
    factor = torch.clamp(1.0 / (squares.sqrt() + 1e-6), max=1.0)
    torch._foreach_mul_(parts, factor)


def peer(args, folder, steps, compiled=False, jemalloc=False, dtype="fp32"):
    words = [__file__, "--peer-process", "--folder", str(folder), "--config", args.config, "--threads", str(args.threads),
             "--steps", str(steps), "--dtype", dtype, "--processes", str(args.processes)]
    command = [sys.executable, *words]
    if args.processes > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.processes),
                   *words]
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    if compiled:
        command.append("--compile")
    if jemalloc:
        env["LD_PRELOAD"] = find_jemalloc()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads((folder / "peer.json").read_text())


def find_jemalloc():
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"):
        for path in sorted(pathlib.Path(folder).glob("libjemalloc.so*")):
            return str(path)
    sys.exit("--best needs jemalloc: apt-get install libjemalloc2")


# ---- the comparison ----


def sgemm_peak(threads):
    """FLOP/s of the best of some fp32 products of size 2048."""
    import torch
    torch.set_num_threads(threads)
    a, b = torch.rand(2048, 2048), torch.rand(2048, 2048)
    out, best = torch.empty(2048, 2048), 0.0
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        best = max(best, 2 * 2048**3 / (time.perf_counter() - start))
    return best


def step_flops(config, shape):
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    tokens = shape["sequences"] * shape["seq_len"]
    layer = (4 * hidden * hidden + hidden * shape["seq_len"] + hidden * config["num_local_experts"]
             + 3 * hidden * config["intermediate_size"] * config["num_experts_per_tok"])
    return 6 * tokens * (layers * layer + hidden * config["vocab_size"])


def make_inputs(args, folder):
    library = pathlib.Path(os.__file__).parent
    text = b"".join(path.read_bytes() for path in sorted(library.glob("*.py")))
    (folder / "text").write_bytes(bytes(b for b in text[:3_000_000] if b))
    (folder / "cluster.yaml").write_text(f"name: here\nnodes:\n  - {{name: local, devices: [CPU x{args.processes}]}}\n")
    # One step with learning rate 0 writes the initial weights.
    hetermoe(args, folder, 1, 0, ["--checkpoint.every", "1"])
    shutil.move(folder / "hetermoe/checkpoints/step-00000001", folder / "weights")


def contestants(args, folder):
    """Name and a function that runs it, in the order of a round."""
    bf16 = args.dtype == "bf16"
    ours = ["--plan.attention_dtype", "bf16", "--plan.expert_dtype", "bf16", "--plan.wire_dtype", "bf16"] if bf16 else []
    out = {"peer": lambda: peer(args, folder, args.steps)}
    if bf16:
        out["peer, bf16 autocast"] = lambda: peer(args, folder, args.steps, dtype="bf16")
    if args.best:
        out["peer, jemalloc"] = lambda: peer(args, folder, args.steps, jemalloc=True, dtype=args.dtype)
        out["peer, compiled"] = lambda: peer(args, folder, args.steps, compiled=True, dtype=args.dtype)
        out["peer, compiled, jemalloc"] = lambda: peer(args, folder, args.steps, compiled=True, jemalloc=True,
                                                       dtype=args.dtype)
    out["hetermoe, bf16" if bf16 else "hetermoe"] = lambda: hetermoe(args, folder, args.steps, ADAMW["lr"], ours)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(SHAPES), default="s")
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--processes", type=int, default=1,
                        help="more than one: experts spread over them, the peer's other parameters by FSDP (gloo); "
                        "hetermoe's strategy ep under mpirun")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: beside the peer in fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="per round; the first two are not timed")
    parser.add_argument("--best", action="store_true", help="also the peer with torch.compile, with jemalloc, and with both")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer_process:
        return peer_process(args)
    shape = SHAPES[args.config]
    config = json.load(open(ROOT / "configs/models" / f"{args.config}.json"))
    flops, tokens = step_flops(config, shape), shape["sequences"] * shape["seq_len"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_inputs(args, folder)
        runs = contestants(args, folder)
        results = {who: {"all": [], "shares": []} for who in runs}
        for _ in range(args.rounds):
            for who, run in runs.items():
                peak = sgemm_peak(args.threads * args.processes)
                one = run()
                seconds = statistics.median(one["seconds"][2:])
                results[who]["all"].append(tokens / seconds)
                results[who]["shares"].append(flops / seconds / peak)
                results[who].update(peak_memory_bytes=one["memory"], losses=one["losses"])
    ours = list(runs)[-1]
    for r in results.values():
        r["tokens_per_s"] = statistics.median(r["all"])
        r["share_of_sgemm"] = statistics.median(r.pop("shares"))
        r["ratio"] = statistics.median(h / p for h, p in zip(results[ours]["all"], r["all"]))
        r["largest_loss_difference"] = max(abs(a - b) / b for a, b in zip(results[ours]["losses"], r["losses"]))
    result = {"config": args.config, "threads": args.threads, "processes": args.processes, "dtype": args.dtype,
              "gflop_per_step": flops / 1e9, "results": results}
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"config {args.config.upper()}, {args.dtype}, {args.processes} processes of {args.threads} threads, "
              f"{args.rounds} rounds of {args.steps} steps, {flops / 1e9:.1f} GFLOP a step")
        print(f"{'':25} tokens/s  of sgemm  memory GB  hetermoe is  losses              differ by")
        for who, r in results.items():
            print(f"{who:25} {r['tokens_per_s']:8.0f}  {r['share_of_sgemm']:8.3f}  {r['peak_memory_bytes'] / 1e9:9.2f}  "
                  f"{r['ratio']:9.3f} x  {r['losses'][0]:.5f} ... {r['losses'][-1]:.5f}  {r['largest_loss_difference']:.0e}")
        print("medians of rounds; memory is the largest resident set of one process")
    if results["peer"]["largest_loss_difference"] > (1e-3 if args.dtype == "fp32" else 2e-2):
        sys.exit("the losses differ: not the same model")


if __name__ == "__main__":
    ensure_environment()
    main()
