"""Tiny GGUF models with random weights, one for each kind of memory that llama.cpp has for a prompt."""

from pathlib import Path

import gguf
import numpy as np

from llmkube import weights

DEMO = Path(weights.__file__).parent / "builtin" / "demo.gguf"
WORDS, WIDTH, INNER, STATE, LATENT = 384, 64, 128, 16, 32


class Writer:
    """Writes one model: the demo's words, and random weights from a seed."""

    def __init__(self, path, architecture, layers, *, output=True):
        self.rng = np.random.default_rng(1)
        self.gguf = gguf.GGUFWriter(path, architecture)
        for name, field in gguf.GGUFReader(DEMO).fields.items():
            if name.startswith("tokenizer."):
                self.gguf.add_key_value(name, field.contents(), *field.types[:2])
        self.gguf.add_context_length(8192)
        self.gguf.add_embedding_length(WIDTH)
        self.gguf.add_block_count(layers)
        self.gguf.add_feed_forward_length(INNER)
        self.gguf.add_layer_norm_rms_eps(1e-6)
        self.gguf.add_vocab_size(WORDS)
        self.gguf.add_head_count(4)
        self.random("token_embd.weight", WORDS, WIDTH)
        self.ones("output_norm.weight", WIDTH)
        if output:
            self.random("output.weight", WORDS, WIDTH)

    def random(self, name, *shape):
        self.gguf.add_tensor(name, (self.rng.standard_normal(shape) * 0.2).astype(np.float32))

    def ones(self, name, *shape):
        self.gguf.add_tensor(name, np.ones(shape, np.float32))

    def attention(self, at):
        self.ones(f"blk.{at}.attn_norm.weight", WIDTH)
        for part, rows, columns in (("q", 64, WIDTH), ("k", 32, WIDTH), ("v", 32, WIDTH), ("output", WIDTH, 64)):
            self.random(f"blk.{at}.attn_{part}.weight", rows, columns)

    def feed_forward(self, at):
        self.ones(f"blk.{at}.ffn_norm.weight", WIDTH)
        for part, rows, columns in (("gate", INNER, WIDTH), ("up", INNER, WIDTH), ("down", WIDTH, INNER)):
            self.random(f"blk.{at}.ffn_{part}.weight", rows, columns)

    def state_space(self, at):
        block = f"blk.{at}"
        self.ones(f"{block}.attn_norm.weight", WIDTH)
        self.random(f"{block}.ssm_in.weight", 2 * INNER, WIDTH)
        self.random(f"{block}.ssm_conv1d.weight", INNER, 4)
        self.random(f"{block}.ssm_conv1d.bias", INNER)
        self.random(f"{block}.ssm_x.weight", 4 + 2 * STATE, INNER)
        self.random(f"{block}.ssm_dt.weight", INNER, 4)
        self.random(f"{block}.ssm_dt.bias", INNER)
        decay = -np.abs(self.rng.standard_normal((INNER, STATE))).astype(np.float32) - 0.1
        self.gguf.add_tensor(f"{block}.ssm_a", decay)
        self.ones(f"{block}.ssm_d", INNER)
        self.random(f"{block}.ssm_out.weight", WIDTH, INNER)

    def add_state_space_sizes(self):
        self.gguf.add_ssm_conv_kernel(4)
        self.gguf.add_ssm_inner_size(INNER)
        self.gguf.add_ssm_state_size(STATE)
        self.gguf.add_ssm_time_step_rank(4)

    def close(self):
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def write_full_attention(path):
    model = Writer(path, "llama", 2)
    model.gguf.add_head_count_kv(2)
    model.gguf.add_rope_dimension_count(16)
    for at in range(2):
        model.attention(at)
        model.feed_forward(at)
    model.close()


def write_sliding_window(path):
    model = Writer(path, "gemma3", 6, output=False)
    model.gguf.add_head_count_kv(2)
    model.gguf.add_key_length(16)
    model.gguf.add_value_length(16)
    model.gguf.add_sliding_window(64)
    for at in range(6):
        model.attention(at)
        model.feed_forward(at)
        for name, size in (("attn_q", 16), ("attn_k", 16), ("post_attention", WIDTH), ("post_ffw", WIDTH)):
            model.ones(f"blk.{at}.{name}_norm.weight", size)
    model.close()


def write_recurrent(path):
    model = Writer(path, "mamba", 2, output=False)
    model.add_state_space_sizes()
    for at in range(2):
        model.state_space(at)
    model.close()


def write_hybrid(path):
    model = Writer(path, "jamba", 2)
    model.gguf.add_head_count_kv([0, 2])
    model.gguf.add_rope_dimension_count(16)
    model.add_state_space_sizes()
    model.state_space(0)
    for name, size in (("dt", 4), ("b", STATE), ("c", STATE)):
        model.ones(f"blk.0.ssm_{name}_norm.weight", size)
    model.attention(1)
    for at in range(2):
        model.feed_forward(at)
    model.close()


def write_latent_attention(path):
    model = Writer(path, "deepseek2", 2)
    sizes = model.gguf
    sizes.add_head_count_kv(1)
    sizes.add_rope_dimension_count(8)
    sizes.add_key_length(LATENT + 8)
    sizes.add_value_length(LATENT)
    sizes.add_key_length_mla(STATE + 8)
    sizes.add_value_length_mla(STATE)
    sizes.add_kv_lora_rank(LATENT)
    sizes.add_q_lora_rank(LATENT)
    sizes.add_leading_dense_block_count(2)
    sizes.add_expert_count(0)
    sizes.add_expert_used_count(0)
    sizes.add_expert_feed_forward_length(WIDTH)
    sizes.add_expert_shared_count(0)
    sizes.add_expert_weights_scale(1.0)
    for at in range(2):
        block = f"blk.{at}"
        model.ones(f"{block}.attn_norm.weight", WIDTH)
        model.random(f"{block}.attn_q_a.weight", LATENT, WIDTH)
        model.ones(f"{block}.attn_q_a_norm.weight", LATENT)
        model.random(f"{block}.attn_q_b.weight", 4 * (STATE + 8), LATENT)
        model.random(f"{block}.attn_kv_a_mqa.weight", LATENT + 8, WIDTH)
        model.ones(f"{block}.attn_kv_a_norm.weight", LATENT)
        model.random(f"{block}.attn_k_b.weight", 4, LATENT, STATE)
        model.random(f"{block}.attn_v_b.weight", 4, STATE, LATENT)
        model.random(f"{block}.attn_output.weight", WIDTH, 4 * STATE)
        model.feed_forward(at)
    model.close()


KINDS = {
    "full attention": write_full_attention,
    "sliding window": write_sliding_window,
    "recurrent": write_recurrent,
    "hybrid": write_hybrid,
    "latent attention": write_latent_attention,
}


MATRICES = {
    "attn_q": (WIDTH, 64),
    "attn_k": (WIDTH, 32),
    "attn_v": (WIDTH, 32),
    "attn_output": (64, WIDTH),
    "ffn_down": (INNER, WIDTH),
}
"""Row and column lengths of matrices in each block of a model with full attention."""


def write_adapter(path, *, rank=4, seed=1, names=("attn_q", "ffn_down"), blocks=2, matrices=MATRICES, **keys):
    """Write a LoRA adapter for the model with full attention; `keys` replace those of its header, None omits one."""
    adapter, rng = gguf.GGUFWriter(path, keys.pop("architecture", "llama")), np.random.default_rng(seed)
    header = {"general.type": "adapter", "adapter.type": "lora", "general.base_model.0.name": "Tiny"} | keys
    for name, value in header.items():
        if value is not None:
            adapter.add_string(name, value)
    adapter.add_float32("adapter.lora.alpha", 2.0 * rank)
    for at in range(blocks):
        for name in names:
            rows, columns = matrices[name]
            for part, shape in (("a", (rank, rows)), ("b", (columns, rank))):
                adapter.add_tensor(f"blk.{at}.{name}.weight.lora_{part}", rng.standard_normal(shape, np.float32))
    adapter.write_header_to_file()
    adapter.write_kv_data_to_file()
    adapter.write_tensors_to_file()
    adapter.close()
