"""The parts of a model's header that determine its memory: its tensors and the numbers of its architecture.

A `Shape` is read with the other facts of a GGUF file (`GGUFFacts.shape`) or from an MLX folder (`mlx`). It is immutable
and takes a few hundred kilobytes for the largest models.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs


class Tensor(NamedTuple):  # not attrs, for speed: a header may have 65,536 of them
    """One tensor of a file; `sizes` starts with the length of a row, and `size_bytes` is 0 for an unknown type."""

    name: str
    type: str
    sizes: tuple[int, ...]
    size_bytes: int

    @property
    def place(self) -> tuple[int, str]:
        """Its block's number and its name in it, without `enc.` and `.weight`; -1 and the whole name outside blocks."""
        name = self.name.removeprefix("enc.").removesuffix(".weight")
        parts = name.split(".", 2)
        is_block = len(parts) == 3 and parts[0] == "blk" and len(parts[1]) < 4 and parts[1].isdecimal()
        return (int(parts[1]), parts[2]) if is_block else (-1, name)


def vocabulary_of(tensors: tuple[Tensor, ...]) -> int:
    """Return the number of vectors in the token embedding; 0 if it is not among these tensors."""
    embedding = next((each for each in tensors if each.name == "token_embd.weight"), None)
    return embedding.sizes[1] if embedding and len(embedding.sizes) > 1 else 0


@attrs.frozen(cache_hash=True)
class Shape:
    """The sizes of a model.

    Attributes:
        architecture: The name in llama.cpp (`qwen3moe`).
        tensors: The tensors of all parts that were read.
        numbers: The values by key, without the architecture's name; a single number is a tuple of one.
        layer_count: The number of blocks, including those for multi-token prediction.
        embedding_size: The length of a token's vector.
        vocabulary_size: The number of tokens.
        trained_context: The trained context length in tokens; 0 if unknown.
        size_bytes: The size of all its known files.
        unread_bytes: The tensor data in those files that is not in `tensors`.
        missing_parts: The number of files of a split model whose headers were not read.
        format: `gguf` or `mlx`.
    """

    architecture: str
    tensors: tuple[Tensor, ...]
    numbers: Mapping[str, tuple[int, ...]] = attrs.field(hash=False)
    layer_count: int
    embedding_size: int
    vocabulary_size: int
    trained_context: int = 0
    size_bytes: int = 0
    unread_bytes: int = 0
    missing_parts: int = 0
    format: str = "gguf"

    @classmethod
    def of_header(
        cls,
        architecture: str,
        tensors: tuple[Tensor, ...],
        numbers: Mapping[str, tuple[int, ...]],
        tokens: int,
        **others: Any,
    ) -> "Shape":
        """Return the shape from the keys of a GGUF header; `tokens` is the size of its tokenizer's vocabulary."""
        return cls(
            architecture=architecture,
            tensors=tensors,
            numbers=numbers,
            layer_count=numbers["block_count"][0],
            embedding_size=numbers["embedding_length"][0],
            vocabulary_size=vocabulary_of(tensors) or tokens,
            trained_context=numbers["context_length"][0],
            **others,
        )

    def number(self, name: str, default: int = 0) -> int:
        """Return a number for all layers; the largest if the file has one for each."""
        return max(self.numbers.get(name, ()), default=default)

    def per_layer(self, name: str, default: int = 0) -> tuple[int, ...]:
        """Return a number for each layer, whether the file has one for all or one for each."""
        found = self.numbers.get(name, (default,))
        if len(found) == self.layer_count:
            return found
        return (found[0] if len(found) == 1 else default,) * self.layer_count


@attrs.frozen(eq=False)
class Projector:
    """A file that turns pictures or sound into vectors for a model (`--mmproj`).

    Attributes:
        kind: The kind, such as `gemma3`; of a file with two, the one for pictures.
        width: The length of its vectors; None if unknown.
        vision: Whether it reads pictures.
        audio: Whether it reads sound.
        shape: Its tensors, and the numbers of the part for pictures.
        path: The file; empty if it is not on this host.
        identity: Changes whenever the bytes may have changed.
        name: The file's name for people; empty for `path`'s.
    """

    kind: str
    width: int | None
    vision: bool
    audio: bool
    shape: Shape
    path: str = ""
    identity: str = ""
    name: str = ""

    def __str__(self) -> str:
        reads = " and ".join(name for name, has in (("pictures", self.vision), ("sound", self.audio)) if has)
        return f"{self.name} ({self.kind}: {reads})"


@attrs.frozen
class AdapterFacts:
    """The facts of an adapter.

    Attributes:
        kind: Its type (`lora`); "" if the file does not state one.
        rank: The largest rank of its matrices.
        alpha: The strength that it was trained with, divided by the rank of a matrix when it is applied; None if unset.
        base: Name of the model that it was trained for; "" if unknown.
        tensors: Its tensors.
    """

    kind: str
    rank: int
    alpha: float | None
    base: str
    tensors: tuple[Tensor, ...] = attrs.field(eq=False, repr=False)


@attrs.frozen
class GGUFFacts:
    """The facts in a GGUF header; None for absent ones.

    `head_count_kv` is the largest number of key-value heads of the layers. `size_bytes` is the size of this file alone,
    even if the model is split into `split_count` files; for a remote file of unknown size, it is the size that its
    tensors need. `pooling_type` is the pooling of an embedding model, in llama.cpp's numbers: 0 means none.
    `newer_tensor_types` are the numbers of tensor types that only engines newer than this release know. `shape` is for
    `sizing`, and `projector` is the one that the model is served with; both are ignored in comparisons. An adapter has
    `adapter` instead of a shape.
    """

    architecture: str
    file_version: int
    tensor_count: int
    size_bytes: int
    name: str | None = None
    license: str | None = None
    quantization: str | None = None
    context_length: int | None = None
    layer_count: int | None = None
    embedding_size: int | None = None
    head_count: int | None = None
    head_count_kv: int | None = None
    pooling_type: int | None = None
    split_count: int = 1
    newer_tensor_types: tuple[int, ...] = ()
    adapter: AdapterFacts | None = None
    shape: Shape | None = attrs.field(default=None, eq=False, repr=False)
    projector: Projector | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def input_width(self) -> int:
        """The length of the vectors that the model takes as input, several for each position of some; 0 if unknown."""
        return self.shape.embedding_size * (1 + self.shape.number("n_deepstack_layers")) if self.shape else 0

    @classmethod
    def of(cls, shape: Shape, **others: Any) -> "GGUFFacts":
        """Return the facts from a model's shape, and the others as given."""
        return cls(
            architecture=shape.architecture,
            tensor_count=len(shape.tensors),
            size_bytes=shape.size_bytes,
            context_length=shape.trained_context,
            layer_count=shape.layer_count,
            embedding_size=shape.embedding_size,
            head_count=max(shape.numbers.get("attention.head_count", ()), default=None),
            head_count_kv=max(shape.numbers.get("attention.head_count_kv", ()), default=None),
            pooling_type=next(iter(shape.numbers.get("pooling_type", ())), None),
            shape=shape,
            **others,
        )


@attrs.frozen(eq=False)
class FolderFacts:
    """The facts of a model in a folder of safetensors; no shape is known of weights that only their engine reads."""

    shape: Shape | None = None
    pooling_type: int | None = None

    @property
    def size_bytes(self) -> int:
        """The size of all its weights files."""
        return self.shape.size_bytes if self.shape else 0

    @property
    def context_length(self) -> int | None:
        """The trained context length in tokens; None if unknown."""
        return (self.shape.trained_context if self.shape else 0) or None


ModelHeader = GGUFFacts | FolderFacts
"""The facts of a model from its file or folder."""
