"""A GGUF file whose weights are a hole: the header of a real model, and no data."""

import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from llmkube.weights.formats.gguf_format import DEFAULT_ALIGNMENT, TENSOR_TYPES

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from gguf_bytes import BOOL, F32, I32, STRING, U32, array, array_head, header, key, tensor, text

KINDS: Final = {name: (number, block, size) for number, (name, block, size) in TENSOR_TYPES.items()}
_COARSER: Final = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Types that quantizers use instead where a row is no multiple of 256."""

Value = bool | int | float | str | Sequence[int] | Sequence[bool]
Tensors = list[tuple[str, tuple[int, ...]]]


@attrs.frozen
class Model:
    """A model as its header describes it; the keys are without the architecture in front."""

    architecture: str
    keys: Mapping[str, Value]
    vocabulary: int
    tensors: Tensors
    types: int = 0
    """Number of token types (BERT's segments)."""

    @property
    def layers(self) -> int:
        """Number of blocks."""
        return int(self.keys["block_count"])  # type: ignore[arg-type] # always a number

    def kind(self, name: str, dimensions: tuple[int, ...], mix: str) -> str:
        """Return the type that a quantizer would give a tensor, about as `llama-quantize` chooses."""
        plain = len(dimensions) == 1 or not name.endswith(".weight")
        if plain or any(word in name for word in ("norm", "ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "position")):
            return "F32"
        chosen = mix
        if mix == "Q4_K_M":
            tied = all(other != "output.weight" for other, _ in self.tensors)
            careful = name == ("token_embd.weight" if tied else "output.weight")
            if name.startswith("blk.") and any(word in name for word in ("attn_v.", "attn_qkv.", "ffn_down")):
                layer, eighth = int(name.split(".")[1]), self.layers // 8
                careful = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
            chosen = "Q6_K" if careful else "Q4_K"
        if mix == "MXFP4":
            chosen = "MXFP4" if "_exps" in name else "Q8_0"
        if dimensions[0] % KINDS[chosen][1]:
            chosen = _COARSER.get(chosen, "F16")
        return chosen if dimensions[0] % KINDS[chosen][1] == 0 else "F16"

    def head(self, mix: str) -> tuple[bytes, int]:
        """Return the header's bytes, padded to where the data starts, and the size of that data."""
        entries, offset = [], 0
        for name, dimensions in self.tensors:
            number, block, size = KINDS[self.kind(name, dimensions, mix)]
            entries.append(tensor(name, dimensions, number, offset))
            elements = 1
            for dimension in dimensions:
                elements *= dimension
            offset += _padded(elements // block * size)
        keys = [key("general.architecture", STRING, self.architecture), key("general.quantization_version", U32, 2)]
        keys += [_key(f"{self.architecture}.{name}", value) for name, value in self.keys.items()]
        data = header(*keys, *_tokenizer(self.vocabulary, self.types), tensors=entries)
        return data.ljust(_padded(len(data)), b"\0"), offset

    def write(self, path: Path, mix: str) -> None:
        """Write the file: a header, then nothing but a hole of the right size."""
        head, size = self.head(mix)
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + size)


def _padded(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _key(name: str, value: Value) -> bytes:
    if isinstance(value, str):
        made: bytes = key(name, STRING, value)
    elif isinstance(value, bool | int | float):
        made = key(name, BOOL if isinstance(value, bool) else U32 if isinstance(value, int) else F32, value)
    else:
        made = array(name, BOOL if isinstance(value[0], bool) else I32, value)
    return made


def _tokenizer(count: int, types: int) -> list[bytes]:
    """Return the smallest vocabulary of that many tokens that an engine accepts: the buffers depend on the number."""
    words = [b"[PAD]", b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]"] if types else [b"<unk>", b"<s>", b"</s>"]
    if not types:
        words += [b"<0x%02X>" % byte for byte in range(256)]
    words += [b"%d" % number for number in range(count - len(words))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * count][:count]
    keys = [
        key("tokenizer.ggml.model", STRING, "bert" if types else "llama"),
        array_head("tokenizer.ggml.tokens", STRING, count) + b"".join(map(text, words)),
    ]
    if types:
        return [*keys, key("tokenizer.ggml.token_type_count", U32, types)]
    scores = array_head("tokenizer.ggml.scores", F32, count) + bytes(4 * count)
    given = array_head("tokenizer.ggml.token_type", I32, count) + struct.pack(f"<{count}i", *kinds)
    return [*keys, scores, given]
