"""Shapes of models without files: real dimensions, so that tests of the estimate need neither weights nor an engine."""

import functools
import json
from pathlib import Path

import attrs

from llmkube.weights.formats.gguf_format import TENSOR_TYPES
from llmkube.weights.formats.shape import Shape, Tensor

KINDS = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}
GOLDEN = Path(__file__).parent / "weights" / "data" / "llama_buffers.json"


def tensor(name, sizes, kind="Q4_K"):
    elements, size = KINDS[kind]
    count = functools.reduce(int.__mul__, sizes, 1)
    return Tensor(name, kind, tuple(sizes), count // elements * size)


def shape(architecture, tensors, vocabulary, keys):
    numbers = {name: tuple(map(int, value)) if isinstance(value, list) else (int(value),)
               for name, value in keys.items() if isinstance(value, int | list)}  # fmt: skip
    return Shape(
        architecture=architecture,
        tensors=tuple(tensors),
        numbers=numbers,
        layer_count=keys["block_count"],
        embedding_size=keys["embedding_length"],
        vocabulary_size=vocabulary,
        trained_context=keys.get("context_length", 0),
        size_bytes=sum(each.size_bytes for each in tensors),
    )


def decoder(architecture="llama", *, width=4096, layers=32, heads=32, kv_heads=8, length=128, inner=14336,
            vocabulary=32000, kind="Q4_K", **keys):  # fmt: skip
    """Return a plain transformer; further keyword arguments go into its header, with dots as double underscores."""
    named = {name.replace("__", "."): value for name, value in keys.items()}
    facts = {
        "context_length": 131072,
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": length,
        "attention.value_length": length,
        **named,
    }
    block = {
        "attn_norm": ((width,), "F32"),
        "attn_q": ((width, heads * length), kind),
        "attn_k": ((width, kv_heads * length), kind),
        "attn_v": ((width, kv_heads * length), kind),
        "attn_output": ((heads * length, width), kind),
        "ffn_norm": ((width,), "F32"),
        "ffn_gate": ((width, inner), kind),
        "ffn_up": ((width, inner), kind),
        "ffn_down": ((inner, width), kind),
    }
    tensors = [
        tensor("token_embd.weight", (width, vocabulary), kind),
        tensor("output_norm.weight", (width,), "F32"),
        tensor("output.weight", (width, vocabulary), kind),
    ]
    for at in range(layers):
        tensors += [tensor(f"blk.{at}.{name}.weight", *what) for name, what in block.items()]
    return shape(architecture, tensors, vocabulary, facts)


@functools.cache
def golden():
    return json.loads(GOLDEN.read_text())


@functools.cache
def golden_shape(name):
    """Return a model of the recorded runs; the blocks of its file follow each other, with the same order in each."""
    model = golden()["models"][name]
    order = list(dict.fromkeys(entry[0] for entry in model["tensors"]))
    tensors = []
    for pattern, sizes, kind, first, last in model["tensors"]:
        numbers = [None] if first is None else range(first, last + 1)
        tensors += [((-1 if at is None else at, order.index(pattern)), pattern.replace("*", str(at)), sizes, kind)
                    for at in numbers]  # fmt: skip
    made = [tensor(name, sizes, kind) for _, name, sizes, kind in sorted(tensors)]
    found = shape(model["architecture"], made, model["vocabulary"], model["keys"])
    return attrs.evolve(found, size_bytes=model["file_bytes"])
