"""Whether the memory of a model is back, of a process that holds other models too. Pure.

No process ends with a model. So what the process holds is looked at while the model is listed, and again when it is
not: unless that has fallen by half of what the model takes, the model is still there, whatever the server says. What
other models have come and gone meanwhile is counted with what the server says that they take.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

MEASURABLE_BYTES: Final = 32 * 1024**2
"""The least model that shows: buffers of requests come and go by as much."""

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class Shot:
    """What a process holds, at one look.

    Attributes:
        pid: The process; None where it is not seen.
        held: What it holds, in bytes.
        size: What the server says that our model takes, in bytes; 0 where it says nothing.
        others: What it says of the other models that are loaded, in bytes by their ids.
    """

    pid: int | None
    held: int = 0
    size: int = 0
    others: Mapping[str, int] = _NONE


@attrs.frozen(kw_only=True)
class Account:
    """What is remembered of one process.

    Attributes:
        before: The last look at which the model was not there; None when it was there at the first one.
        loaded: The last look at which it was listed as loaded; None once its memory is back.
    """

    before: Shot | None = None
    loaded: Shot | None = None


def noted(account: Account, shot: Shot, *, listed: bool) -> Account:
    """Take a look into account; of another process than before nothing is known."""
    last = account.loaded or account.before
    if shot.pid is None or (last is not None and last.pid != shot.pid):
        account = Account()
    if shot.pid is None:
        return account
    if listed:
        return attrs.evolve(account, loaded=_with_lagging(account.loaded, shot))
    return account if remains(account, shot) else Account(before=shot)


def remains(account: Account, shot: Shot) -> bool:
    """Whether the process holds the model still, of which the server says that it is not loaded."""
    loaded = account.loaded
    if loaded is None or loaded.pid != shot.pid:
        return False
    size = _size(account)
    return size >= MEASURABLE_BYTES and 2 * (loaded.held + grown_by_others(loaded, shot) - shot.held) < size


def _with_lagging(earlier: Shot | None, shot: Shot) -> Shot:
    """Count models with a look that are not listed any more, and whose memory is not back yet."""
    gone = {} if earlier is None else {name: of for name, of in earlier.others.items() if name not in shot.others}
    if earlier is None or not gone:
        return shot
    if 2 * (earlier.held + grown_by_others(earlier, shot) + sum(gone.values()) - shot.held) >= sum(gone.values()):
        return shot
    return attrs.evolve(shot, others={**shot.others, **gone})


def _size(account: Account) -> int:
    """What the model takes, in bytes: as the server says, or less if the process has grown by less."""
    loaded, before = account.loaded, account.before
    assert loaded is not None, "asked of a model that was listed"
    if before is None:
        return loaded.size
    grown = max(0, loaded.held - before.held - grown_by_others(before, loaded))
    return min(loaded.size, grown) if loaded.size else grown


def grown_by_others(earlier: Shot, later: Shot) -> int:
    """Return by how much other models have let the process grow between two looks, in bytes."""
    came = sum(size for name, size in later.others.items() if name not in earlier.others)
    return came - sum(size for name, size in earlier.others.items() if name not in later.others)
