#!/usr/bin/env python3
"""Other programs load what hetermoe leaves, and compute what it does. Nothing of this runs in the tests: they need no Python
packages. docs/testing.md says when it was run.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers peft
  /tmp/venv/bin/python tests/parity/check_folders.py build/hetermoe        # prints tables, ends with 1 when one is wrong

Of each family the tiny random model of tests/data/parity, as transformers wrote it:
  train     50 steps on an emulated cluster of three types of devices; the folder of train.save_hf in transformers
  adapters  50 steps of adapters on all matrices; the base with them in PEFT, the merged folder in transformers
  upcycle   twice the experts; the folder in transformers
  layers    experts in place of a dense layer's MLP; the folder in transformers, and the source
Each is compared with the logits of `hetermoe generate --logits`: the largest difference over the largest logit.
"""
import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file

PARITY = Path(__file__).resolve().parents[1] / "data" / "parity"
MOE = ["mixtral", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "kimi_k2", "qwen2_moe", "glm4_moe", "minimax_m2",
       "ernie4_5_moe", "gpt_oss"]
DENSE = ["llama", "qwen3", "mistral", "qwen2"]
# Not the one whose correction bias would not fit copies, nor the one whose experts have biases.
GROWING = [name for name in MOE if name not in ("ernie4_5_moe", "gpt_oss")]
TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38, 4, 6]
LIMIT = 1e-5
# The vocabulary is of 40 tokens: bytes below 40.
TEXT = "".join(chr(1 + i * 7 % 39) for i in range(400))


def run(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def ours(program, folder, work):
    run(program, "generate", folder, "--prompt-tokens", ",".join(map(str, TOKENS)), "--tokens", 1, "--logits",
        work / "logits.safetensors")
    return load_file(work / "logits.safetensors")["logits"].double()


def load(folder):
    how = dict(attn_implementation="eager", experts_implementation="eager", dtype=torch.float32)
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] != "kimi_k2":
        return transformers.AutoModelForCausalLM.from_pretrained(folder, **how).eval()
    # transformers has no such class. With this model type in the config it would pass over the weights of the experts.
    config = transformers.DeepseekV3Config.from_dict({**config, "model_type": "deepseek_v3"})
    return transformers.DeepseekV3ForCausalLM.from_pretrained(folder, config=config, **how).eval()


def theirs(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].double()


def distance(a, b):
    return float((a - b).abs().max() / b.abs().max())


def train(program, source, work, *more):
    (work / "toy.txt").write_text(TEXT)
    dense = source.name in DENSE
    out = run(program, "train", "--train.init_from", source, "--cluster", "demo3", "--strategy", "ep" if dense else "zebra",
              "--data.paths", work / "toy.txt", "--data.tokenizer", "bytes", "--data.validation_share", 0, "--train.seq_len", 16, "--train.sequences", 8,
              "--train.microbatches", 2, "--train.steps", 50, "--train.learning_rate", 0.01, "--clock.kind", "virtual",
              "--checkpoint.every", 0, "--train.validation_sequences", 0, "--train.save_hf", work / "out", "--output",
              work / "run", "--json", *more)
    plan = json.loads((work / "run/plan.json").read_text())
    assert {device // 2 for group in plan["groups"] for device in group["devices"]} == {0, 1, 2}, "a type is idle"
    losses = [json.loads(line)["loss"] for line in (work / "run/metrics.jsonl").read_text().splitlines()]
    assert "{" in out
    return losses[0], losses[-1]


def check_train(program, name, work):
    first, last = train(program, PARITY / name, work)
    got = ours(program, work / "out", work)
    return dict(loss=f"{first:.3f} to {last:.3f}", transformers=distance(theirs(load(work / "out")), got))


def check_adapters(program, name, work):
    targets = ["*.self_attn.*_proj*", "*.mlp.*_proj*" if name in DENSE else "*.experts.*"]
    if name == "gpt_oss":  # whose experts are one module in transformers: PEFT finds no matrix of each
        targets.pop()
    first, last = train(program, PARITY / name, work, "--train.lora.rank", 4, "--train.lora.targets", ",".join(targets))
    got = ours(program, work / "out", work)
    base = load(PARITY / name)
    changed = distance(theirs(base), got)
    adapted = peft.PeftModel.from_pretrained(base, work / "out/adapter").eval()
    return dict(loss=f"{first:.3f} to {last:.3f}", base_differs=changed, peft=distance(theirs(adapted), got),
                merged_in_transformers=distance(theirs(load(work / "out")), got))


def check_upcycle(program, name, work):
    modes = {"mixtral": "wide-k", **dict.fromkeys(("deepseek_v3", "kimi_k2", "glm4_moe", "minimax_m2"), "dormant")}
    run(program, "upcycle", PARITY / name, "-o", work / "out", "--factor", 2, "--mode", modes.get(name, "fixed-k"))
    got = ours(program, work / "out", work)
    config = json.loads((work / "out/config.json").read_text())
    experts = next(config[key] for key in ("n_routed_experts", "num_local_experts", "num_experts") if key in config)
    return dict(mode=modes.get(name, "fixed-k"), experts=experts,
                transformers=distance(theirs(load(work / "out")), got))


def check_layers(program, name, work):
    """A model whose experts hold the dense MLP; deepseek_v3 of the tests has too wide a one."""
    source = PARITY / name
    if name == "deepseek_v3":
        source = work / "source"
        config = transformers.AutoConfig.from_pretrained(PARITY / name, intermediate_size=30, n_routed_experts=16, num_experts_per_tok=4)
        torch.manual_seed(1)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(source)
    more = {"qwen3": ("--experts", 4, "--layers", 1), "qwen3_moe": ("--layers", 1), "deepseek_v3": ("--layers", 0)}[name]
    made = json.loads(run(program, "upcycle", source, "-o", work / "out", "--json", "--verify", *more))
    got = ours(program, work / "out", work)
    return dict(shards=made["shards"], transformers=distance(theirs(load(work / "out")), got), source_in_transformers=distance(theirs(load(source)), got))


CHECKS = {"train": (check_train, MOE + DENSE), "adapters": (check_adapters, MOE + DENSE), "upcycle": (check_upcycle, GROWING),
          "layers": (check_layers, ["qwen3", "qwen3_moe", "deepseek_v3"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("checks", nargs="*", default=list(CHECKS))
    words = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    wrong = []
    for check in words.checks or CHECKS:
        function, names = CHECKS[check]
        for i, name in enumerate(names):
            with tempfile.TemporaryDirectory() as work:
                row = function(Path(words.program).resolve(), name, Path(work))
            if i == 0:
                print(f"\n| {check} | {' | '.join(row)} |\n|{'---|' * (len(row) + 1)}")
            cells = [f"{value:.1e}" if isinstance(value, float) else str(value) for value in row.values()]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            wrong += [f"{check} {name} {key}" for key, value in row.items()
                      if key in ("transformers", "peft", "merged_in_transformers", "source_in_transformers") and not value <= LIMIT]
            if not row.get("base_differs", 1) > 0.01:
                wrong.append(f"{check} {name}: adapters change nothing")
    sys.exit(f"beyond {LIMIT}: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
