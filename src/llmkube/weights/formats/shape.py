"""What of a model's header decides how much memory it needs: its tensors, and the numbers of its architecture.

A `Shape` is read together with the other facts of a GGUF file (`GGUFFacts.shape`) or from an MLX folder (`mlx`); it is
a value, and a few hundred kilobytes for the largest models.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs


class Tensor(NamedTuple):  # not attrs: a header may have 65,536 of them, and they are made while it is read
    """One tensor of a file; `sizes` has the length of a row first, and `size_bytes` is 0 for a type we do not know."""

    name: str
    type: str
    sizes: tuple[int, ...]
    size_bytes: int

    @property
    def place(self) -> tuple[int, str]:
        """The number of its block and its name there, without `.weight`; -1 and its whole name outside of blocks."""
        name = self.name.removesuffix(".weight")
        parts = name.split(".", 2)
        is_block = len(parts) == 3 and parts[0] == "blk" and len(parts[1]) < 4 and parts[1].isdecimal()
        return (int(parts[1]), parts[2]) if is_block else (-1, name)


def vocabulary_of(tensors: tuple[Tensor, ...]) -> int:
    """Return how many tokens the embedding has a vector for; 0 if it is not among these tensors."""
    embedding = next((each for each in tensors if each.name == "token_embd.weight"), None)
    return embedding.sizes[1] if embedding and len(embedding.sizes) > 1 else 0


@attrs.frozen(cache_hash=True)
class Shape:
    """The sizes of a model.

    Attributes:
        architecture: As llama.cpp names it (`qwen3moe`).
        tensors: Of all parts that were read.
        numbers: The keys below the architecture's name, without it; a single number is a tuple of one.
        layer_count: Blocks, those that only guess ahead included.
        embedding_size: Elements of a token's vector.
        vocabulary_size: Tokens.
        trained_context: Tokens that the model was trained for; 0 if the file does not say.
        size_bytes: Of all its files, as far as they are known.
        unread_bytes: Tensor data of those files that `tensors` does not account for.
        missing_parts: Files of a split model whose headers were not read.
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
        """Return the shape that the keys of a GGUF header tell; `tokens` are those of its tokenizer."""
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
        """Return a number that holds for all layers; the largest if the file gives one for each."""
        return max(self.numbers.get(name, ()), default=default)

    def per_layer(self, name: str, default: int = 0) -> tuple[int, ...]:
        """Return a number for each layer, whether the file gives one for all or one for each."""
        found = self.numbers.get(name, (default,))
        if len(found) == self.layer_count:
            return found
        return (found[0] if len(found) == 1 else default,) * self.layer_count


@attrs.frozen
class GGUFFacts:
    """What a GGUF header says about its model; None where it says nothing.

    Models whose layers differ give a number of key-value heads for each layer: `head_count_kv` is then the largest of
    them, and `head_count_kv_per_layer` has them all. `size_bytes` is the size of this file alone, also when the model
    is split into `split_count` files; of a remote file whose size is not known, it is what its tensors need.
    `pooling_type` says how an embedding model joins its tokens' vectors, in llama.cpp's numbers: 0 is not at all.
    `newer_tensor_types` are numbers of tensor types that only an engine newer than this release can judge. `shape` is
    what `sizing` needs; it is no part of what two files are compared by.
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
    head_count_kv_per_layer: tuple[int, ...] = ()
    key_length: int | None = None
    value_length: int | None = None
    pooling_type: int | None = None
    split_count: int = 1
    newer_tensor_types: tuple[int, ...] = ()
    shape: Shape | None = attrs.field(default=None, eq=False, repr=False)

    @classmethod
    def of(cls, shape: Shape, heads: tuple[int, ...], kv_heads: tuple[int, ...], **others: Any) -> "GGUFFacts":
        """Return the facts that follow from a model's shape and its numbers of heads, with the others."""

        def number(key: str) -> int | None:
            return next(iter(shape.numbers.get(key, ())), None)

        return cls(
            architecture=shape.architecture,
            tensor_count=len(shape.tensors),
            size_bytes=shape.size_bytes,
            context_length=shape.trained_context,
            layer_count=shape.layer_count,
            embedding_size=shape.embedding_size,
            head_count=max(heads, default=None),
            head_count_kv=max(kv_heads, default=None),
            head_count_kv_per_layer=kv_heads if len(kv_heads) > 1 else (),
            key_length=number("attention.key_length"),
            value_length=number("attention.value_length"),
            pooling_type=number("pooling_type"),
            shape=shape,
            **others,
        )


@attrs.frozen(eq=False)
class FolderFacts:
    """What the files of a folder of safetensors say about its model."""

    shape: Shape
    pooling_type: int | None = None

    @property
    def size_bytes(self) -> int:
        """Of all its files of weights."""
        return self.shape.size_bytes

    @property
    def context_length(self) -> int | None:
        """Tokens that the model was trained for; None where its configuration does not say."""
        return self.shape.trained_context or None


ModelHeader = GGUFFacts | FolderFacts
"""What weights say of their model: of a file, or of a folder."""
