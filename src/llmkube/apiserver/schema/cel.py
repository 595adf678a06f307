"""The door to CEL: what is behind it (`celrules`) takes a third of a second to import, and waits until it is used.

`llmkube up` starts by showing its definitions to the server; where they are stored already, no rule is looked at.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.values.field_errors import FieldError

_RECURSION_LIMIT: Final = 2500
"""What celpy sets."""


def check(value: Any, old: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """Return what the schema's rules have against a value; rules about a change are skipped where there was none."""
    if not schema.has_rules:
        return []
    with _rules() as cel_rules:
        found: list[FieldError] = cel_rules.check(value, old, schema, path)
        return found


def compiled(text: str) -> Any:
    """Return the compiled expression, compiled at most once.

    Raises:
        RuleError: It does not parse.
    """
    with _rules() as cel_rules:
        return cel_rules.compiled(text)


@contextmanager
def _rules() -> Iterator[Any]:
    """Let the stack grow as celpy wants it: on import it raises the limit for the whole process, and for good."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        from llmkube.apiserver.schema import cel_rules  # noqa: PLC0415  # see above

        yield cel_rules
    finally:
        sys.setrecursionlimit(before)
