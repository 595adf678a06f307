"""The names of a model's files: parts of a split model (`PREFIX-00001-of-00003.gguf`), quantizations, projectors."""

import re
from collections.abc import Collection
from typing import Final

from llmkube.weights.errors import SourceError

MAX_PARTS: Final = 128
"""Maximum number of parts of one split model; each is an open file during the download."""

_PART: Final = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.ASCII | re.DOTALL)


def part_names(name: str) -> tuple[str, ...]:
    """Return the names of all parts of the split model that a name belongs to, or only the name itself.

    llama.cpp's convention: `PREFIX-00001-of-00003.gguf`, numbered from 1.

    Raises:
        SourceError: The numbers in the name are invalid, or there are too many parts.
    """
    found = _PART.fullmatch(name)
    if found is None:
        return (name,)
    number, count = int(found["number"]), int(found["count"])
    if not 0 < number <= count:
        raise SourceError(f"{name!r} is part {number} of {count}, which is impossible")
    if count > MAX_PARTS:
        raise SourceError(f"{name!r} is one of {count} parts; more than {MAX_PARTS} are not supported")
    return tuple(f"{found['prefix']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1))


_NUMBERS: Final = re.compile(r"-\d{5}-of-\d{5}$")
_QUANTIZATION: Final = re.compile(  # at the end of a file's name: Q4_K_M, IQ2_XXS, UD-Q4_K_XL, BF16, MXFP4
    r"(?P<model>.*?)[-._](?P<quantization>(?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|F16|F32|MXFP4\w*))", re.ASCII | re.IGNORECASE
)
_PROJECTOR: Final = re.compile(r"(?:.*[-_.])?mmproj.*\.gguf", re.IGNORECASE)
_PROJECTOR_TYPES: Final = ("f16", "bf16", "q8_0", "f32")  # the best compromise first; engines compute in 16 bits


def parse_name(path: str) -> tuple[str, str]:
    """Return the model in a file's name, which all quantizations share, and the quantization or ""."""
    stem = _NUMBERS.sub("", path.rpartition("/")[2][: -len(".gguf")])
    found = _QUANTIZATION.fullmatch(stem)
    return (stem, "") if found is None else (found["model"], found["quantization"])


def is_projector(path: str) -> bool:
    """Return whether a file's name is that of a projector: `mmproj-F16.gguf`, `NAME.mmproj-Q8_0.gguf`."""
    return _PROJECTOR.fullmatch(path.rpartition("/")[2]) is not None


def choose_projector(model: str, names: Collection[str]) -> str:
    """Return the projector of a model among the files of its folder, by their names; "" if there is none.

    Next to several models, only a projector with the model's name is its own. Among several, one in 16 bits is chosen.
    """
    own = parse_name(model)[0].lower()
    found = [each for each in names if is_projector(each)]
    models = [each for each in names if each.lower().endswith(".gguf") and not is_projector(each)]
    if any(parse_name(each)[0].lower() != own for each in models if "imatrix" not in each.lower()):
        found = [each for each in found if own in each.lower()]

    kinds = {each: parse_name(each)[1].lower() for each in found}
    return min(found, key=lambda each: ((*_PROJECTOR_TYPES, kinds[each]).index(kinds[each]), each), default="")
