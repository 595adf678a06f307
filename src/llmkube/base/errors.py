"""Error classes of the project: each shows whether the input or the environment is at fault, and so whether to retry.

```
LLMKubeError
├── UserError       the input is invalid: name the field, keep running what runs, do not retry
└── ExternalError   a network, a disk or another process failed: retry with back-off
```

Any other exception is a bug, and propagates unchanged.
"""

import errno
from typing import Final

RESOURCE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of this host when it has run out of a resource; the peer is not at fault."""

LOCAL_CONNECT_ERRNOS: Final = RESOURCE_ERRNOS | {errno.EADDRNOTAVAIL}
"""Errors of a connection attempt that this host caused, not the peer.

EADDRNOTAVAIL means that no local port is free: macOS has 16,384 of them, and a closed connection holds one for 30 s.
"""


class LLMKubeError(Exception):
    """An expected failure, with a message for the user."""


class UserError(LLMKubeError):
    """The input is invalid until the user changes it.

    Args:
        message: One sentence that names the value and the fix.
        field: Path of the invalid field as the user wrote it (`spec.source`), or empty.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class ExternalError(LLMKubeError):
    """A failure outside this program; the same call may succeed later."""


def first_leaf(error: BaseException) -> BaseException:
    """Return the first leaf of an exception group, which is the actual error; return any other error as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def leaves(error: BaseException) -> list[BaseException]:
    """Return all leaves of an exception group, at any depth; any other error is its own only leaf."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in leaves(member)]
    return [error]
