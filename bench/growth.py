#!/usr/bin/env python3
"""What growth of experts is worth on a small byte model: losses of runs that grow beside runs that do not.

usage: growth.py HETERMOE [--steps 2000] [--seeds 1,2,3] [--output out/growth]

Rows: few experts throughout, twice as many throughout, grown after a third and after half of the steps. All see the same tokens.
eta = (few - grown) / (few - many): 1 = the gap is closed.
"""
import argparse
import json
import shutil
import subprocess
from pathlib import Path

# Part of the steps before growth, mode, score.
GROWN = ((3, "fixed-k", "uniform"), (3, "wide-k", "uniform"), (2, "fixed-k", "uniform"), (2, "fixed-k", "gradient"), (2, "fixed-k", "random"),
         (2, "wide-k", "uniform"), (3, "random", "uniform"), (2, "random", "uniform"))


def model(path, experts):
    config = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 256, "hidden_size": 64,
              "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 16, "num_local_experts": experts, "num_experts_per_tok": 2, "max_position_embeddings": 512,
              "rms_norm_eps": 1e-5, "rope_theta": 1e4, "router_aux_loss_coef": 0.01}
    path.write_text(json.dumps(config))


def train(program, folder, config, steps, seed, more=()):
    shutil.rmtree(folder, ignore_errors=True)
    words = [program, "train", "--model", str(config), "--cluster", "one", "--strategy", "single", "--output", str(folder),
             "--train.steps", str(steps), "--train.seed", str(seed), "--train.sequences", "16", "--train.seq_len", "64",
             "--train.microbatches", "1", "--train.learning_rate", "3e-3", "--train.validation_sequences", "512", "--clock.threads", "1",
             "--checkpoint.every", str(steps), "--json", *more]
    subprocess.run(words, check=True, capture_output=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())["rows"][0]["executed"]
    return {"validation": summary["validation_loss"], "losses": [line["loss"] for line in lines]}


def table(rows):
    lines = ["| run | validation loss, seeds | jump of the loss | eta |", "|---|---|---|---|"]
    for name in dict.fromkeys(row[1] for row in rows):
        of = [row for row in rows if row[1] == name]
        text = lambda i, digits: " ".join(f"{row[i]:.{digits}f}" for row in of) if of[0][i] is not None else ""
        lines.append(f"| {name} | {text(2, 4)} | {text(3, 3)} | {text(4, 2)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--output", default="out/growth")
    given = parser.parse_args()
    root = Path(given.output)
    root.mkdir(parents=True, exist_ok=True)
    few, many = root / "few.json", root / "many.json"
    model(few, 8)
    model(many, 16)
    rows = []
    for seed in (int(seed) for seed in given.seeds.split(",")):
        run = lambda name, config, more=(): train(given.program, root / f"{name}-{seed}", config, given.steps, seed, more)
        small, large = run("fixed-8", few), run("fixed-16", many)
        gap = small["validation"] - large["validation"]
        rows += [(seed, "fixed-8", small["validation"], None, None), (seed, "fixed-16", large["validation"], None, None)]
        for part, mode, score in GROWN:
            at = given.steps // part
            more = ["--grow.at", str(at), "--grow.mode", mode, "--grow.score", score]
            grown = run(f"{mode}-{score}-{at}", few, more)
            jump = grown["losses"][at] - small["losses"][at]
            rows.append((seed, f"{mode} {score} at {at}", grown["validation"], jump, (small["validation"] - grown["validation"]) / gap))
        print(f"after seed {seed}:", table(rows), sep="\n", flush=True)


if __name__ == "__main__":
    main()
