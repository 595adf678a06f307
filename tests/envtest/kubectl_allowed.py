"""The differences between the two servers that a user of kubectl would accept, each with its reason."""

from collections.abc import Sequence
from typing import Final

from envtest.kubectl_text import Allowed

ALLOWED: Final[Sequence[Allowed]] = ()
