"""Lines of key files: a key itself, or the record of an issued key, which has only the key's digest. Pure.

```
sha256:9f86…0a08 for=alice until=2027-02-01T00:00:00Z models=phi-4,qwen-*
```

A file has the name of a team, and so has an entry of a Secret that is mounted as a folder. A record without `until` has
no expiry, one without `models` allows every model. A record that cannot be read is ignored.
"""

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import attrs

from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.config.routing_config import pattern_problem

ISSUED_IN: Final = "llmkube-keys"
"""Name of the Secret in which `llmkube keys` stores records, unless the user names another."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}", re.ASCII)
"""Holders of keys, such as a person or a program; and teams."""

_PREFIX: Final = "sha256:"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@attrs.frozen(kw_only=True)
class IssuedKey:
    """One line.

    Attributes:
        digest: SHA-256 of the key.
        name: The holder; "" for a line that is a key itself.
        until: Expiry, in seconds since 1970; infinite for none.
        models: Patterns of the models that it may use; empty for every model.
        problem: Why the line is invalid, without any part of a key; "" if it is valid.
    """

    digest: bytes = attrs.field(default=b"", repr=False)
    name: str = ""
    until: float = math.inf
    models: tuple[str, ...] = ()
    problem: str = ""

    @property
    def line(self) -> str:
        """The record."""
        fields = [f"{_PREFIX}{self.digest.hex()}", f"for={self.name}"]
        if not math.isinf(self.until):
            fields.append(f"until={shown_time(self.until)}")
        return " ".join([*fields, f"models={','.join(self.models)}"] if self.models else fields)


def shown_time(seconds: float) -> str:
    """Return a time as in RFC 3339, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_key_line(line: str) -> IssuedKey:
    """Parse a line that is not empty.

    Raises:
        ValueError: It is an invalid record; the message contains no part of a key.
    """
    if not line.startswith(_PREFIX):
        return IssuedKey(digest=digest_of_key(line))
    digest, *rest = line.removeprefix(_PREFIX).split()
    fields = dict(each.partition("=")[::2] for each in rest)
    if not _DIGEST.fullmatch(digest) or len(fields) != len(rest) or fields.keys() - {"for", "until", "models"}:
        raise ValueError("a record is sha256:DIGEST for=NAME [until=TIME] [models=A,B]")
    if not NAME.fullmatch(fields.get("for", "")):
        raise ValueError(f"for: {fields.get('for')!r} is not a name; use up to 63 letters, digits, dots, _, @ and -")
    models = tuple(fields["models"].split(",")) if "models" in fields else ()
    if problem := next(filter(None, map(pattern_problem, models)), ""):
        raise ValueError(f"models: {problem}")
    until = math.inf
    if "until" in fields:
        until = datetime.strptime(fields["until"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    return IssuedKey(digest=bytes.fromhex(digest), name=fields["for"], until=until, models=models)


def parse_key_file(text: str) -> Iterator[tuple[int, IssuedKey]]:
    """Yield each line that is not empty, with its number."""
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line:
            try:
                yield number, parse_key_line(line)
            except ValueError as exc:
                yield number, IssuedKey(problem=str(exc))
