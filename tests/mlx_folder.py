"""A model as MLX engines keep it, with a header and no data behind it."""

import json
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
