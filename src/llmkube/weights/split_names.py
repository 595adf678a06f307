"""The names of the parts of a split model: `PREFIX-00001-of-00003.gguf`."""

import re
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
