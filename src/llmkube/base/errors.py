"""The error nouns of the project: each says who is at fault, and so whether to try again.

```
LLMKubeError
├── UserError    the input is at fault: say which field, keep what runs, do not retry
└── ExternalError   the world is at fault (network, disk, another process): retry with back-off
```

Anything else that is raised is a bug, and travels up as it is.
"""

import errno
from typing import Final

RESOURCE_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What an OSError says when this very host has run out of something: no fault of the peer."""

LOCAL_CONNECT_ERRNOS: Final = RESOURCE_ERRNOS | {errno.EADDRNOTAVAIL}
"""What an attempt to connect ends with when this host lacked what it takes to connect.

The last one is a port to connect from: macOS has 16,384 of them, and an ended connection keeps its own for 30 s.
"""


class LLMKubeError(Exception):
    """Something that LLMKube expects can go wrong, with a sentence fit for a user."""


class UserError(LLMKubeError):
    """The input is wrong and stays wrong until the user edits it.

    Args:
        message: One sentence that names the value and the fix.
        field: The path of the offending field as the user wrote it (`spec.source`), or empty.
    """

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class ExternalError(LLMKubeError):
    """The world said no for now; the same call may succeed later."""


def first_leaf(error: BaseException) -> BaseException:
    """Return the first leaf of a group, which is what actually went wrong; of anything else, the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def leaves(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, however deep; an error that is no group stands for itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in leaves(member)]
    return [error]
