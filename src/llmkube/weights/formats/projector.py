"""Projectors: files that turn pictures or sound into vectors for a model (`--mmproj`), read from their headers.

The checks of an engine that loads one are in llama.cpp's `clip.cpp` and `mtmd.cpp`: the architecture, the kind, and
that its vectors are as long as the model's inputs.
"""

from collections.abc import Callable
from pathlib import Path

import attrs

from llmkube.base.trusted_paths import open_file
from llmkube.weights.errors import ProjectorError
from llmkube.weights.formats import gguf_format as fmt
from llmkube.weights.formats.gguf import HeaderValues, read_file
from llmkube.weights.formats.shape import GGUFFacts, Projector, Shape
from llmkube.weights.source import NO_PROJECTOR


def read_projector(path: Path, opener: Callable[[Path], int] = open_file, name: str = "") -> Projector:
    """Read the facts of a projector from its header; blocks on the disk.

    Args:
        path: The file.
        opener: Opens it.
        name: Its name for people; empty for the path.

    Raises:
        ProjectorError: It is not a projector.
        WeightsError: Raised by `opener`.
        NotGGUFError: It is not a complete GGUF file.
        FetchError: It cannot be read now.
    """
    reader, name = read_file(path, opener), name or str(path)
    header = reader.header
    assert header is not None, "the reader has been fed until `next_range` is None"
    values = HeaderValues(reader, header)
    architecture = values.text(fmt.ARCHITECTURE)
    if architecture != fmt.PROJECTOR:
        found = f"a model of the architecture {architecture}" if architecture else "no model"
        raise ProjectorError(
            f"{name} is not a projector but {found}; name the file that belongs to the model, usually mmproj*.gguf"
        )
    vision, audio = (values.numbers(f"clip.has_{part}_encoder") == (1,) for part in ("vision", "audio"))
    part = "vision" if vision or not audio else "audio"
    kind = values.text("clip.projector_type") or values.text(f"clip.{part}.projector_type") or ""
    numbers = {key.removeprefix("vision."): values.numbers(f"clip.{key}") for key in fmt.PROJECTOR_KEYS}
    first = {key: found[0] for key, found in numbers.items() if found}
    tensors = {each.name: each.sizes for each in header.tensors}
    last, axis = fmt.PROJECTOR_WIDTHS.get(kind, ("", 0))
    width = (
        next(iter(tensors.get(last, ())[axis:]), 0)
        or first.get("projection_dim")
        or first.get("audio.projection_dim", 0)
    )
    if kind == "qwen3vl_merger":  # the vectors of some inner layers come with the last one's
        width *= 1 + len({each.split(".")[2] for each in tensors if each.startswith("v.deepstack.")})
    layers, size = first.get("block_count", 0), header.size_bytes or header.needed_bytes
    shape = Shape(kind, header.tensors, numbers, layers, first.get("embedding_length", 0), 0, size_bytes=size)
    return Projector(kind, width or None, vision, audio, shape, name=name)


def with_projector(facts: GGUFFacts, projector: Projector | None) -> GGUFFacts:
    """Return a model's facts with its projector, if it has one.

    Raises:
        ProjectorError: The projector's vectors are not as long as the model's inputs.
    """
    wanted = facts.input_width
    if projector is not None and wanted and projector.width not in (None, wanted):
        raise ProjectorError(
            f"{projector.name} is the projector of another model: its vectors have {projector.width} values, and the "
            f"model's {wanted}; name the projector of this model, or {NO_PROJECTOR} to serve text only"
        )
    return attrs.evolve(facts, projector=projector)
