"""A line of the chain carries its own hash and that of the line before, so that no line changes without all after it.

One process has one chain. It begins with a line that names the router and the digest of its config; a reload adds a
line with the new digest; an orderly end adds the last one. Who can rewrite the whole file can make another chain: a
hash that was noted elsewhere shows it.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from llmkube.base import json_text

START: Final = "start"
CONFIG: Final = "config"
DECISION: Final = "decision"
END: Final = "end"
KINDS: Final = (START, CONFIG, DECISION, END)

CHAIN_KEY: Final = "chain"
SEQUENCE_KEY: Final = "seq"
KIND_KEY: Final = "kind"
BEFORE_KEY: Final = "prev"
HASH_KEY: Final = "hash"
CONFIG_KEY: Final = "config"
RESERVED: Final = frozenset({CHAIN_KEY, SEQUENCE_KEY, KIND_KEY, BEFORE_KEY, HASH_KEY})
NONE_BEFORE: Final = ""


def hash_of(line: Mapping[str, Any]) -> str:
    """Return the hash of a line: of its canonical JSON (keys in order, no spaces), without the hash itself."""
    body = {key: value for key, value in line.items() if key != HASH_KEY}
    return hashlib.sha256(json_text.dumps(body, sort_keys=True)).hexdigest()


@attrs.define(eq=False, kw_only=True)
class ReceiptChain:
    """The chain of one process; each method returns a line to be written, in this order and none twice.

    Attributes:
        chain: What tells this chain from the others: text that no other process has.
    """

    chain: str
    _before: str = attrs.field(default=NONE_BEFORE, init=False)
    _next: int = attrs.field(default=0, init=False)

    @property
    def last_hash(self) -> str:
        """The hash of the newest line: noted elsewhere, it shows a chain that was rewritten."""
        return self._before

    def start(self, *, config: str, fields: Mapping[str, Any]) -> bytes:
        """Begin the chain.

        Args:
            config: Digest of the config that decisions are made by.
            fields: What else the line says: the router's name, the release, the time.
        """
        assert self._next == 0
        return self._line(START, {**fields, CONFIG_KEY: config})

    def reload(self, *, config: str, fields: Mapping[str, Any]) -> bytes:
        """Say that decisions are made by another config from here on."""
        return self._line(CONFIG, {**fields, CONFIG_KEY: config})

    def decision(self, fields: Mapping[str, Any]) -> bytes:
        """Add a decision, with what the audit log says of it."""
        return self._line(DECISION, fields)

    def end(self, fields: Mapping[str, Any]) -> bytes:
        """Say that nothing follows."""
        return self._line(END, fields)

    def _line(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        if taken := RESERVED.intersection(fields):
            raise ValueError(f"the chain itself writes {', '.join(sorted(taken))}")
        line = {
            **fields,
            CHAIN_KEY: self.chain,
            SEQUENCE_KEY: self._next,
            KIND_KEY: kind,
            BEFORE_KEY: self._before,
        }
        canonical = json_text.dumps(line, sort_keys=True)
        self._before = hashlib.sha256(canonical).hexdigest()
        self._next += 1
        return b'%b,"%b":"%b"}\n' % (canonical[:-1], HASH_KEY.encode(), self._before.encode())
