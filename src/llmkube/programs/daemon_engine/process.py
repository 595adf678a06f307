"""A process as the kernel lists it. Pure."""

import attrs


@attrs.frozen
class Process:
    """A process with its parent's number and its command line."""

    pid: int
    parent: int
    argv: tuple[str, ...]
