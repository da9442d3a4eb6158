#!/usr/bin/env python3
"""Trains a small Mixtral with Hugging Face transformers and with hetermoe, alternately in one run: same initial
weights, data, threads, dtype and optimizer. Prints medians, ratios, the share of the sgemm peak measured in between,
peak memory and the losses of both, which must agree.

  bench/peers/peers.py                       # config S, 2 threads
  bench/peers/peers.py --config m --threads 1 --rounds 5

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
PACKAGES = ["torch==2.11.0", "transformers==5.23.0", "numpy", "safetensors"]
SHAPES = {"s": dict(seq_len=256, sequences=8), "m": dict(seq_len=512, sequences=4)}
ADAMW = dict(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
SEED = 1


def ensure_environment():
    if pathlib.Path(sys.prefix) == VENV:
        return
    python = VENV / "bin" / "python"
    if not (VENV / "ready").exists():
        print("making .venv-peers (several GB from PyPI)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES], check=True)
        (VENV / "ready").touch()
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
    command = [str(ROOT / "build" / "hetermoe"), "train", "--model", str(ROOT / "bench/peers" / f"{args.config}.json"),
               "--cluster", "one", "--strategy", "single", "--output", str(out), "--data.paths", str(folder / "text"),
               "--data.max_bytes", "100000000", "--train.steps", str(steps), "--train.warmup_steps", "0",
               "--train.final_share", "1", "--train.sequences", str(shape["sequences"]),
               "--train.seq_len", str(shape["seq_len"]), "--train.microbatches", "1", "--train.aux_group", "0",
               "--train.learning_rate", str(learning_rate), "--train.validation_sequences", "0",
               "--plan.recompute", "off", "--clock.threads", str(args.threads), *extra]
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"hetermoe failed: {' '.join(command)}")
    records = [json.loads(line) for line in open(out / "metrics.jsonl")]
    return {"losses": [r["loss"] for r in records], "seconds": [r["wall_s"] for r in records],
            "memory": usage.ru_maxrss * 1024}


def peer_process(args):
    """Runs in a process of its own: transformers, as its users call it."""
    import torch
    import torch.nn.functional as F
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    folder, shape = pathlib.Path(args.folder), SHAPES[args.config]
    text = (folder / "text").read_bytes()
    text = text[:len(text) - int(0.05 * len(text))]  # hetermoe keeps the end for validation
    num_windows = (len(text) - 1) // shape["seq_len"]
    model = AutoModelForCausalLM.from_pretrained(folder / "weights", dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    if args.compile:
        model = torch.compile(model)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], fused=True, **ADAMW)
    losses, seconds, index = [], [], 0
    for _ in range(args.steps):
        rows = []
        for _ in range(shape["sequences"]):
            begin = window_of(index, num_windows) * shape["seq_len"]
            rows.append(list(text[begin:begin + shape["seq_len"] + 1]))
            index += 1
        batch = torch.tensor(rows)
        start = time.perf_counter()
        out = model(input_ids=batch[:, :-1], output_router_logits=True, use_cache=False)
        loss = F.cross_entropy(out.logits.flatten(0, 1), batch[:, 1:].flatten())
        (loss + model.config.router_aux_loss_coef * out.aux_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    print(json.dumps({"losses": losses, "seconds": seconds,
                      "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def peer(args, folder, steps):
    command = [sys.executable, __file__, "--peer-process", "--folder", str(folder), "--config", args.config,
               "--threads", str(args.threads), "--steps", str(steps)]
    env = dict(os.environ, OMP_NUM_THREADS=str(args.threads), HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    if args.best:
        command.append("--compile")
        if args.jemalloc:
            env["LD_PRELOAD"] = args.jemalloc
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


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
    # One step with learning rate 0 writes the initial weights.
    hetermoe(args, folder, 1, 0, ["--checkpoint.every", "1"])
    shutil.move(folder / "hetermoe/checkpoints/step-00000001", folder / "weights")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(SHAPES), default="s")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="per round; the first two are not timed")
    parser.add_argument("--best", action="store_true", help="the peer with torch.compile and jemalloc")
    parser.add_argument("--jemalloc", help="its library, for --best")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer-process", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer_process:
        return peer_process(args)
    shape = SHAPES[args.config]
    config = json.load(open(ROOT / "bench/peers" / f"{args.config}.json"))
    flops, tokens = step_flops(config, shape), shape["sequences"] * shape["seq_len"]
    speeds = {"peer": [], "hetermoe": []}
    shares = {"peer": [], "hetermoe": []}
    memory, losses = {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_inputs(args, folder)
        for _ in range(args.rounds):
            for who in ("peer", "hetermoe"):
                peak = sgemm_peak(args.threads)
                run = peer(args, folder, args.steps) if who == "peer" else hetermoe(args, folder, args.steps, ADAMW["lr"])
                seconds = statistics.median(run["seconds"][2:])
                speeds[who].append(tokens / seconds)
                shares[who].append(flops / seconds / peak)
                memory[who], losses[who] = run["memory"], run["losses"]
    result = {"config": args.config, "threads": args.threads, "best_peer": args.best, "gflop_per_step": flops / 1e9}
    for who in speeds:
        result[who] = {"tokens_per_s": statistics.median(speeds[who]), "all": speeds[who],
                       "share_of_sgemm": statistics.median(shares[who]), "peak_memory_bytes": memory[who],
                       "losses": losses[who]}
    result["ratio"] = statistics.median([h / p for h, p in zip(speeds["hetermoe"], speeds["peer"])])
    difference = max(abs(a - b) / b for a, b in zip(losses["hetermoe"], losses["peer"]))
    result["largest_loss_difference"] = difference
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print(f"config {args.config.upper()}, fp32, {args.threads} threads, {args.rounds} rounds of {args.steps} steps, "
              f"{flops / 1e9:.1f} GFLOP a step")
        for who in speeds:
            r = result[who]
            print(f"{who:10} {r['tokens_per_s']:8.0f} tokens/s  {r['share_of_sgemm']:.3f} of sgemm  "
                  f"{r['peak_memory_bytes'] / 1e9:.2f} GB  losses {r['losses'][0]:.5f} ... {r['losses'][-1]:.5f}")
        print(f"hetermoe / peer: {result['ratio']:.3f} (median of rounds); losses differ by at most {difference:.1e}")
    if difference > 1e-3:
        sys.exit("the losses differ: not the same model")


if __name__ == "__main__":
    ensure_environment()
    main()
