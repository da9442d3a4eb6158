#!/usr/bin/env python3
"""Trains a MoE model with Hugging Face transformers on one device and prints one line of JSON.

usage: peer.py CONFIG.json --variant autocast [--compile] --sequences 8 --seq-len 2048 [--steps 8] [--device cuda:0]

autocast: fp32 parameters, products in bf16, as hetermoe's fp32 masters. pure: bf16 parameters and moments, 8 bytes a parameter
instead of 16. Experts as grouped products, attention by scaled_dot_product_attention, fused AdamW, gradients clipped to 1.
"""
import argparse
import json
import pathlib
import resource
import statistics
import sys
import sysconfig
import tempfile
import time

MISSING = 77  # exit code where torch or transformers are not there


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--variant", choices=["autocast", "pure"], required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--sequences", type=int, required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--experts", default="grouped_mm", help="transformers' experts_implementation")
    return parser.parse_args()


def make_model(args, torch):
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(pathlib.Path(args.config).read_text())
        config = AutoConfig.from_pretrained(folder)
    torch.manual_seed(1)
    with torch.device(args.device):
        return AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa", experts_implementation=args.experts,
            dtype=torch.bfloat16 if args.variant == "pure" else torch.float32).train()


def make_optimizer(model, torch):
    """Weight decay on matrices alone."""
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


def read_text(torch):
    """Bytes of this Python's own sources."""
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.tensor(list(b"".join(f.read_bytes() for f in files)[:2_000_000]), dtype=torch.long)


class Trainer:
    def __init__(self, args, torch):
        self.args, self.torch = args, torch
        self.cuda = args.device.startswith("cuda")
        self.model = make_model(args, torch)
        self.num_parameters = sum(p.numel() for p in self.model.parameters())
        self.optimizer = make_optimizer(self.model, torch)
        self.text = read_text(torch)
        if args.compile:
            self.model = torch.compile(self.model)

    def batch(self):
        begins = self.torch.randint(0, len(self.text) - self.args.seq_len - 1, (self.args.sequences,))
        rows = self.torch.stack([self.text[b:b + self.args.seq_len + 1] for b in begins])
        return rows.to(self.args.device)

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def step(self):
        """(seconds, loss)"""
        torch, functional = self.torch, self.torch.nn.functional
        rows = self.batch()
        self.wait()
        begin = time.perf_counter()
        with torch.autocast("cuda" if self.cuda else "cpu", torch.bfloat16, enabled=self.args.variant == "autocast"):
            out = self.model(input_ids=rows[:, :-1], output_router_logits=True, use_cache=False)
            loss = functional.cross_entropy(out.logits.float().flatten(0, 1), rows[:, 1:].flatten())
        (loss + self.model.config.router_aux_loss_coef * out.aux_loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.wait()
        return time.perf_counter() - begin, loss.item()

    def peak_bytes(self):
        if self.cuda:
            return self.torch.cuda.max_memory_allocated()
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main():
    args = arguments()
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"{sys.executable}: {error}", file=sys.stderr)
        return MISSING
    trainer = Trainer(args, torch)
    steps = [trainer.step() for _ in range(args.steps)]
    seconds = [s for s, _ in steps]
    print(json.dumps({
        "variant": args.variant + ("_compiled" if args.compile else ""),
        "transformers": transformers.__version__, "torch": torch.__version__, "parameters": trainer.num_parameters,
        "step_s": statistics.median(seconds[len(seconds) // 2:]), "steps_s": seconds,
        "peak_bytes": trainer.peak_bytes(), "first_loss": steps[0][1], "last_loss": steps[-1][1]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
