"""CEL on demand: `cel_rules` takes a third of a second to import, so it is imported when it is first used.

`llmkube up` starts by applying its definitions; if they are stored already, no rule is evaluated.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.values.field_errors import FieldError

_RECURSION_LIMIT: Final = 2500
"""The recursion limit that celpy sets."""


def check(value: Any, old: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """Return the violations of the schema's rules; transition rules are skipped where there is no old value."""
    if not schema.has_rules:
        return []
    with _rules() as cel_rules:
        found: list[FieldError] = cel_rules.check(value, old, schema, path)
        return found


def compiled(text: str) -> Any:
    """Return the compiled expression, compiled at most once.

    Raises:
        RuleError: The text does not parse.
    """
    with _rules() as cel_rules:
        return cel_rules.compiled(text)


@contextmanager
def _rules() -> Iterator[Any]:
    """Raise the recursion limit while celpy runs: on import, it would raise it for good, in the whole process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        from llmkube.apiserver.schema import cel_rules  # noqa: PLC0415  # see above

        yield cel_rules
    finally:
        sys.setrecursionlimit(before)
