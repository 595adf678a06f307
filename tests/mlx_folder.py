"""Folders of models in MLX's format; the weights have a header and no data."""

import array
import json
import math
import random
import struct

CONFIG = {
    "model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "max_position_embeddings": 40960,
}  # fmt: skip
TENSORS = {"model.embed_tokens.weight": {"dtype": "U32", "shape": [151936, 128], "data_offsets": [0, 77791232]}}


def folder(path, config=None, tensors=None, header=None):
    (path / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    data = json.dumps({"__metadata__": {"format": "mlx"}, **(TENSORS if tensors is None else tensors)}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data if header is None else header)
    return path


WHOLE = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 260,
    "max_position_embeddings": 2048, "tie_word_embeddings": True, "rope_theta": 10000.0, "eos_token_id": 1,
}  # fmt: skip


def whole_folder(path, seed=1):
    """Write a model that can be computed: two random layers, and a tokenizer of single bytes."""
    wide, inner, some = WHOLE["hidden_size"], WHOLE["intermediate_size"], 32
    shapes = {"model.embed_tokens.weight": (WHOLE["vocab_size"], wide), "model.norm.weight": (wide,)}
    for layer in range(WHOLE["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (wide, wide), "self_attn.k_proj": (some, wide), "self_attn.v_proj": (some, wide),
                "self_attn.o_proj": (wide, wide), "mlp.gate_proj": (inner, wide), "mlp.up_proj": (inner, wide),
                "mlp.down_proj": (wide, inner), "input_layernorm": (wide,), "post_attention_layernorm": (wide,),
            }.items()
        }  # fmt: skip
    dice, header, data = random.Random(seed), {"__metadata__": {"format": "mlx"}}, b""
    for name, shape in shapes.items():
        numbers = array.array("f", (dice.gauss(0, 0.1) for _ in range(math.prod(shape)))).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(numbers)]}
        data += numbers
    head = json.dumps(header).encode()
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (path / "config.json").write_text(json.dumps(WHOLE))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # the byte level of GPT-2's tokenizer
    letters = [chr(byte) for byte in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    vocabulary = {text: number for number, text in enumerate(["<unk>", "<eos>", *letters])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    of_tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "unk_token": "<unk>",
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(of_tokenizer))
    return path
