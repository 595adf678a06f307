"""What of a model's header decides how much memory it needs: its tensors, and the numbers of its architecture.

A `Shape` is read together with the other facts of a GGUF file (`GGUFFacts.shape`) or from an MLX folder (`mlx`); it is
a value, and a few hundred kilobytes for the largest models.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import attrs


class Tensor(NamedTuple):  # not attrs: a header may have 65,536 of them, and they are made while it is read
    """One tensor of a file; `sizes` has the length of a row first, and `size_bytes` is 0 for a type we do not know."""

    name: str
    type: str
    sizes: tuple[int, ...]
    size_bytes: int


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

    def number(self, name: str, default: int = 0) -> int:
        """Return a number that holds for all layers; the largest if the file gives one for each."""
        return max(self.numbers.get(name, ()), default=default)

    def per_layer(self, name: str, default: int = 0) -> tuple[int, ...]:
        """Return a number for each layer, whether the file gives one for all or one for each."""
        found = self.numbers.get(name, (default,))
        if len(found) == self.layer_count:
            return found
        return (found[0] if len(found) == 1 else default,) * self.layer_count


class ModelHeader(Protocol):
    """What weights of every format say of their model; `GGUFFacts` of a file, `FolderFacts` of a folder."""

    @property
    def size_bytes(self) -> int:
        """Of the file, or of all files of weights of the folder."""
        ...

    @property
    def context_length(self) -> int | None:
        """Tokens that the model was trained for."""
        ...

    @property
    def pooling_type(self) -> int | None:
        """How an embedding model joins its tokens' vectors, in llama.cpp's numbers."""
        ...

    @property
    def shape(self) -> Shape | None:
        """What decides how much memory it takes."""
        ...


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
