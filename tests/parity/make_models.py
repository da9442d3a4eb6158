#!/usr/bin/env python3
"""Tiny random models of every family as transformers has them, and what it computes with them.

  python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers
  /tmp/venv/bin/python tests/parity/make_models.py               # writes tests/data/parity/FAMILY/
  /tmp/venv/bin/python tests/parity/make_models.py --check DIR   # transformers reads a folder of hetermoe: logits, loss

Of each family: config.json and model.safetensors as save_pretrained writes them, and expected.safetensors with tokens,
logits, loss, the load-balancing loss and every gradient under the names of the files. Weights are fp32; the expected
values are fp64. The classes of transformers round to fp32 inside (norms, routers, rotary embedding), so they are
executed from their own source text with fp64 in place of fp32. The script checks that this changes nothing but
rounding: loss and logits of the classes as they are differ by less than 1e-4.
"""
import argparse
import importlib
import json
import pathlib
import re
import sys
import types

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "parity"
COMMON = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
              initializer_range=0.2, attention_dropout=0.0, bos_token_id=None, eos_token_id=None, pad_token_id=None)
# Every feature of a family is on, and sizes differ from each other where they may, so that nothing fits by chance.
MODELS = {
    "mixtral": ("mixtral", "Mixtral", dict(
        num_key_value_heads=2, intermediate_size=12, num_local_experts=4, num_experts_per_tok=2,
        router_aux_loss_coef=0.02, output_router_logits=True, sliding_window=None)),
    "qwen3_moe": ("qwen3_moe", "Qwen3Moe", dict(
        num_key_value_heads=2, head_dim=6, num_hidden_layers=3, intermediate_size=20, moe_intermediate_size=10,
        num_experts=6, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1],
        router_aux_loss_coef=0.01, output_router_logits=True, tie_word_embeddings=True)),
    "olmoe": ("olmoe", "Olmoe", dict(
        num_key_value_heads=4, intermediate_size=10, num_experts=6, num_experts_per_tok=3, norm_topk_prob=False,
        clip_qkv=1.5, router_aux_loss_coef=0.01, output_router_logits=True)),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2", dict(
        num_key_value_heads=4, num_hidden_layers=3, intermediate_size=20, moe_intermediate_size=6, n_routed_experts=8,
        num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1, q_lora_rank=None, kv_lora_rank=10,
        qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, routed_scaling_factor=1.5,
        topk_method="group_limited_greedy", n_group=4, topk_group=2, norm_topk_prob=False)),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3", dict(
        num_key_value_heads=4, num_hidden_layers=3, intermediate_size=20, moe_intermediate_size=6, n_routed_experts=8,
        num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=12, kv_lora_rank=10,
        qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, routed_scaling_factor=2.5, n_group=4, topk_group=2,
        norm_topk_prob=True)),
    "llama": ("llama", "Llama", dict(
        num_key_value_heads=2, head_dim=6, num_hidden_layers=3, intermediate_size=20)),
    "qwen3": ("qwen3", "Qwen3", dict(
        num_key_value_heads=2, head_dim=6, intermediate_size=20, tie_word_embeddings=True)),
    "mistral": ("mistral", "Mistral", dict(
        num_key_value_heads=2, head_dim=6, intermediate_size=20, sliding_window=None)),
    "qwen2": ("qwen2", "Qwen2", dict(
        num_key_value_heads=2, num_hidden_layers=3, intermediate_size=20, tie_word_embeddings=True)),
    "qwen2_moe": ("qwen2_moe", "Qwen2Moe", dict(
        num_key_value_heads=2, num_hidden_layers=3, intermediate_size=20, moe_intermediate_size=10,
        shared_expert_intermediate_size=14, num_experts=6, num_experts_per_tok=3, norm_topk_prob=False,
        decoder_sparse_step=1, mlp_only_layers=[1], router_aux_loss_coef=0.01, output_router_logits=True)),
    "glm4_moe": ("glm4_moe", "Glm4Moe", dict(
        num_key_value_heads=2, head_dim=8, num_hidden_layers=3, intermediate_size=20, moe_intermediate_size=6,
        n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1, attention_bias=True,
        use_qk_norm=True, routed_scaling_factor=2.5, norm_topk_prob=True, partial_rotary_factor=0.5)),
    "minimax_m2": ("minimax_m2", "MiniMaxM2", dict(
        num_key_value_heads=2, head_dim=6, intermediate_size=10, num_local_experts=6, num_experts_per_tok=3,
        rotary_dim=4)),
    "ernie4_5_moe": ("ernie4_5_moe", "Ernie4_5_Moe", dict(
        num_key_value_heads=2, num_hidden_layers=4, intermediate_size=20, moe_intermediate_size=10, moe_num_experts=6,
        moe_k=3, moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=2,
        tie_word_embeddings=False)),
    "gpt_oss": ("gpt_oss", "GptOss", dict(
        num_key_value_heads=2, head_dim=6, num_hidden_layers=3, intermediate_size=8, num_local_experts=6,
        num_experts_per_tok=3, sliding_window=4, swiglu_limit=0.6, router_aux_loss_coef=0.01,
        output_router_logits=True)),
}
# Of families that transformers reads by the classes of another one: what their config.json says.
MODEL_TYPES = {"kimi_k2": "kimi_k2", "kimi_k2_other": "kimi_k2"}


def variant(name, base, rope=None, **settings):
    """A family with other settings. Of a scaled rotary embedding, every zone of frequencies has a pair."""
    family, prefix, own = MODELS[base]
    if rope is not None:
        settings["rope_parameters"] = dict(rope_theta=1e4, **rope)
    MODELS[name] = (family, prefix, {**own, **settings})


variant("kimi_k2", "deepseek_v3", dict(
    rope_type="yarn", factor=32.0, original_max_position_embeddings=4096, beta_fast=1.0, beta_slow=1.0, mscale=1.0,
    mscale_all_dim=1.0), n_group=1, topk_group=1, routed_scaling_factor=2.827)
# What each family has switched on, off, and the other way round.
variant("mixtral_other", "mixtral", tie_word_embeddings=True, num_key_value_heads=4)
variant("qwen3_moe_other", "qwen3_moe", norm_topk_prob=False, tie_word_embeddings=False, decoder_sparse_step=2,
        mlp_only_layers=[])
variant("olmoe_other", "olmoe", norm_topk_prob=True, clip_qkv=None, tie_word_embeddings=True, num_key_value_heads=2)
variant("deepseek_v2_other", "deepseek_v2", q_lora_rank=12, topk_method="greedy", n_group=1, topk_group=1,
        tie_word_embeddings=True)
variant("deepseek_v3_other", "deepseek_v3", q_lora_rank=None, n_group=1, topk_group=1, norm_topk_prob=False,
        rope_interleave=False)
variant("kimi_k2_other", "deepseek_v3", q_lora_rank=None, n_shared_experts=2, n_group=4, topk_group=2,
        first_k_dense_replace=2, tie_word_embeddings=True)
variant("qwen2_moe_other", "qwen2_moe", norm_topk_prob=True, qkv_bias=False, tie_word_embeddings=True,
        decoder_sparse_step=2, mlp_only_layers=[])
variant("glm4_moe_other", "glm4_moe", attention_bias=False, use_qk_norm=False, partial_rotary_factor=0.75, n_group=4,
        topk_group=2, norm_topk_prob=False, tie_word_embeddings=True)
variant("minimax_m2_other", "minimax_m2", rotary_dim=6, tie_word_embeddings=True, num_key_value_heads=4)
variant("ernie4_5_moe_other", "ernie4_5_moe", moe_num_shared_experts=0, moe_layer_start_index=0, moe_layer_end_index=1,
        moe_layer_interval=1, num_hidden_layers=3, tie_word_embeddings=True)
variant("gpt_oss_other", "gpt_oss", dict(rope_type="default"), attention_bias=False, tie_word_embeddings=True,
        sliding_window=3, layer_types=["full_attention", "full_attention", "sliding_attention"], swiglu_alpha=1.3,
        swiglu_limit=1.5, num_key_value_heads=4)
# Widths of whole blocks of 32, and the experts in 4 bits, as released models have them.
variant("gpt_oss_mxfp4", "gpt_oss", hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_local_experts=4,
        num_experts_per_tok=2)
variant("glm4_moe_yarn", "glm4_moe", dict(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=4096), head_dim=16)
variant("qwen2_window", "qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
variant("llama_linear", "llama", dict(rope_type="linear", factor=3.0))
variant("llama_dynamic", "llama", dict(rope_type="dynamic", factor=2.5), max_position_embeddings=8)
variant("llama_llama3", "llama", dict(rope_type="llama3", factor=5.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                      original_max_position_embeddings=64), head_dim=8, tie_word_embeddings=True)
variant("llama_yarn", "llama", dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=4096), head_dim=8)
variant("qwen3_moe_yarn", "qwen3_moe", dict(
    rope_type="yarn", factor=6.0, original_max_position_embeddings=2048, beta_fast=20.0, beta_slow=2.0, truncate=False,
    attention_factor=1.3), head_dim=8)
variant("deepseek_v2_yarn", "deepseek_v2", dict(
    rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0, mscale=0.707,
    mscale_all_dim=0.707))
variant("deepseek_v3_yarn", "deepseek_v3", dict(
    rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0, mscale=1.0,
    mscale_all_dim=0.6))
variant("mistral_window", "mistral", sliding_window=5)
variant("mixtral_window", "mixtral", sliding_window=4)
variant("qwen3_moe_window", "qwen3_moe", use_sliding_window=True, sliding_window=3)
variant("qwen3_window", "qwen3", num_hidden_layers=3, use_sliding_window=True, sliding_window=4, max_window_layers=2)


ROPE_UTILS = "transformers.modeling_rope_utils"
MIXTRAL_NAMES = ("mixtral", "minimax_m2")


def widened(module_name):
    """The module with fp64 wherever its text says fp32."""
    original = importlib.import_module(module_name)
    text = pathlib.Path(original.__file__).read_text()
    text = text.replace("from ...modeling_rope_utils import", f"from {ROPE_UTILS}_wide import")
    text = re.sub(r"torch\.float32\b|torch\.float\b(?!\d)", "torch.float64", text)
    text = text.replace(".float()", ".double()")
    module = types.ModuleType(module_name + "_wide")
    module.__package__, module.__file__ = original.__package__, original.__file__
    sys.modules[module.__name__] = module
    exec(compile(text, original.__file__, "exec"), module.__dict__)
    return module


def tokens_of(config):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, config.vocab_size, (4, 12), generator=generator)


def randomize(model, spread):
    """Norms that are not 1, and a correction bias that changes choices but does not make them alone."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("moe_statics.e_score_correction_bias"):
                tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))  # scores are those of a softmax
            elif name.endswith("e_score_correction_bias"):
                # Negative scores, which tell whether experts of groups that are not kept count as 0 or as nothing.
                tensor.copy_(spread * torch.randn(tensor.shape, generator=generator) - 0.6)
            elif name.endswith(".bias"):
                tensor.copy_(0.3 * torch.randn(tensor.shape, generator=generator))
            elif "inv_freq" not in name and tensor.dim() == 1:
                tensor.copy_(1 + 0.3 * torch.randn(tensor.shape, generator=generator))
            elif "inv_freq" not in name:
                tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator))


def step(model, tokens):
    """Logits, loss without the load-balancing one, that one (coefficient included), gradients of both together."""
    model.zero_grad()
    result = model(input_ids=tokens, labels=tokens)
    # The loss function of transformers rounds logits to fp32: the same in fp64.
    loss = torch.nn.functional.cross_entropy(result.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    aux = torch.zeros((), dtype=loss.dtype)
    if getattr(result, "aux_loss", None) is not None:
        aux = model.config.router_aux_loss_coef * result.aux_loss
    assert abs(result.loss - (loss + aux)) < 1e-5
    (loss + aux).backward()
    return dict(logits=result.logits.detach(), loss=loss.detach().reshape(1),
                aux_loss=aux.detach().reshape(1)), {n: p.grad for n, p in model.named_parameters() if p.requires_grad}


def by_expert(name, tensor):
    """Of GPT-OSS, whose columns of gate and up take turns: one tensor for each matrix and bias, as [out, in]."""
    prefix, kind = name.rsplit(".", 1)
    parts = {"gate_proj": tensor[..., ::2], "up_proj": tensor[..., 1::2]} if "gate_up" in kind else {
        "down_proj": tensor}
    ending = "bias" if kind.endswith("_bias") else "weight"
    return {f"{prefix}.{e}.{part}.{ending}": one.T.contiguous() if ending == "weight" else one.contiguous()
            for part, of_all in parts.items() for e, one in enumerate(of_all)}


def pack_experts(model, folder):
    """Replaces the experts' matrices by random 4-bit numbers, in the model and in its files."""
    generator = torch.Generator().manual_seed(4)
    stored = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                continue
            experts, inputs, outputs = tensor.shape
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator).to(torch.uint8)
            scales = torch.randint(122, 126, (experts, outputs, inputs // 32), generator=generator).to(torch.uint8)
            tensor.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
            del stored[name]
            stored[name + "_blocks"], stored[name + "_scales"] = blocks, scales
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def by_file_names(family, tensors):
    """Gradients of fused experts, as the files name them."""
    names = dict(gate="w1", up="w3", down="w2") if family in MIXTRAL_NAMES else \
        dict(gate="gate_proj", up="up_proj", down="down_proj")
    out = {}
    for name, tensor in tensors.items():
        if tensor is None:
            raise SystemExit(f"{family}: {name} has no gradient")
        place = name.replace(".mlp.", ".block_sparse_moe.") if family in MIXTRAL_NAMES else name
        if family == "gpt_oss" and ".experts." in name:
            out.update(by_expert(name, tensor))
            continue
        if name.endswith("experts.gate_up_proj"):
            for e, both in enumerate(tensor):
                gate, up = both.chunk(2, dim=0)
                prefix = place[:-len("gate_up_proj")] + f"{e}."
                out[prefix + names["gate"] + ".weight"], out[prefix + names["up"] + ".weight"] = gate, up
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(tensor):
                out[place[:-len("down_proj")] + f"{e}.{names['down']}.weight"] = down
        else:
            out[place] = tensor
    return out


def make(name):
    family, prefix, settings = MODELS[name]
    config = getattr(transformers, prefix + "Config")(**{**COMMON, **settings})
    options = dict(attn_implementation="eager", experts_implementation="eager")
    torch.manual_seed(1)
    plain = getattr(transformers, prefix + "ForCausalLM")._from_config(config, **options)
    randomize(plain, 0.15 if name.startswith(("kimi", "glm")) else 0.5)  # these choose among all experts
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    plain.save_pretrained(folder)
    if name.endswith("_mxfp4"):
        pack_experts(plain, folder)
    if name in MODEL_TYPES:
        described = json.loads((folder / "config.json").read_text())
        described["model_type"] = MODEL_TYPES[name]
        (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n")
    # Both the classes and the base class, which fills the buffers of new models, take the functions from this table.
    table = importlib.import_module(ROPE_UTILS).ROPE_INIT_FUNCTIONS
    rounded_functions = dict(table)
    table.update(widened(ROPE_UTILS).ROPE_INIT_FUNCTIONS)
    module = widened(f"transformers.models.{family}.modeling_{family}")
    tokens = tokens_of(config)
    torch.set_default_dtype(torch.float64)  # of numbers that the classes compute from lengths
    wide = getattr(module, prefix + "ForCausalLM")._from_config(config, **options).double()
    wide.load_state_dict(plain.state_dict())
    expected, gradients = step(wide.eval(), tokens)
    torch.set_default_dtype(torch.float32)
    table.update(rounded_functions)
    rounded, _ = step(plain.eval(), tokens)
    for key, value in expected.items():
        difference = (value - rounded[key]).abs().max() / value.abs().max().clamp(min=1e-6)
        print(f"{name} {key}: fp32 classes differ by {difference:.1e}")
        assert difference < 1e-4, (name, key)
    assert all(value.dtype == torch.float64 for value in [*expected.values(), *gradients.values()])
    expected["tokens"] = tokens
    for place, tensor in by_file_names(family, gradients).items():
        expected["grad." + place] = tensor
    save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors",
              metadata={"made_by": f"transformers {transformers.__version__}, torch {torch.__version__}"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    for path in folder.iterdir():
        path.chmod(0o644)


def check(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", experts_implementation="eager")
    problems = {k: sorted(v) for k, v in info.items() if v}
    tokens = tokens_of(model.config)
    with torch.no_grad():
        result = model.eval()(input_ids=tokens, labels=tokens)
    print(json.dumps(dict(folder=str(folder), problems=str(problems), dtype=str(model.dtype), loss=float(result.loss),
                          logits_sum=float(result.logits.double().sum()),
                          logits_first=[float(x) for x in result.logits[0, 0, :4]])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check")
    parser.add_argument("families", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    if arguments.check:
        check(arguments.check)
    else:
        for model_name in arguments.families or MODELS:
            make(model_name)
