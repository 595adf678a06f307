"""The demo model as larger files: layers of zeros that change no answer, and a letter that makes each one's its own."""

import struct
from pathlib import Path

import attrs

import gguf_bytes as g
from gguf_corpus import DEMO, demo_draft

QUESTION = "What is LLMKube?"
TOKENS = 16
"""Tokens of an answer, up to its first `r` and three more."""

LAYER_BYTES = 788_480
"""Size of a layer in the file."""

_F32 = 0  # type of a tensor
_LETTER = b"r"  # not in the question
_WIDTH, _KEYS, _INNER = 128, 64, 384
_LAYER = {
    "attn_norm": [_WIDTH],
    "ffn_norm": [_WIDTH],
    "attn_q": [_WIDTH, _WIDTH],
    "attn_k": [_WIDTH, _KEYS],
    "attn_v": [_WIDTH, _KEYS],
    "attn_output": [_WIDTH, _WIDTH],
    "ffn_gate": [_WIDTH, _INNER],
    "ffn_up": [_WIDTH, _INNER],
    "ffn_down": [_INNER, _WIDTH],
}


@attrs.frozen
class PaddedModel:
    """A model: its name, how many layers of zeros follow those of the demo, and whether it has a letter of its own."""

    name: str
    layers: int
    has_letter: bool = True

    @property
    def answer(self) -> str:
        """Its answer to `QUESTION` at temperature 0, cut off after `TOKENS`."""
        return f"LLMKube tu<{self.name}>ns se"

    def write(self, folder: Path) -> Path:
        """Write the file, whose zeros take no place on the disk, and return its path."""
        draft, data = demo_draft(), DEMO.read_bytes()
        data = data[len(data) - draft.data_bytes :]
        keys = {key.name: key for key in draft.keys}
        count = keys[b"llama.block_count"]
        (own,) = struct.unpack("<I", count.data)
        count.data = struct.pack("<I", own + self.layers)
        tokens = keys[b"tokenizer.ggml.tokens"]
        old, new = g.text(_LETTER), g.text(f"<{self.name}>")
        assert tokens.data.count(old) == 1
        if self.has_letter:
            tokens.data = tokens.data.replace(old, new)
        kind = type(draft.tensors[0])
        for number in range(own, own + self.layers):
            for name, sizes in _LAYER.items():
                draft.tensors.append(kind(f"blk.{number}.{name}.weight".encode(), sizes, _F32, draft.data_bytes))
                draft.data_bytes += 4 * sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
        head = draft.packed()
        begin, path = len(head) + -len(head) % draft.alignment, folder / f"{self.name}.gguf"
        with path.open("wb") as file:
            file.write(head)
            file.seek(begin)
            file.write(data)
            file.truncate(begin + draft.data_bytes)
        return path
