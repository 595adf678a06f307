"""Whether a file on a server is still the one that was fetched: pure, from what both are known by."""

from collections.abc import Sequence

import attrs

from llmkube.weights.http_responses import Validator
from llmkube.weights.store.index import Record


@attrs.frozen
class RemoteVersion:
    """What a server says of a file without sending it."""

    size_bytes: int | None
    sha256: str | None
    validator: Validator


def is_current(record: Record, seen: Sequence[RemoteVersion]) -> bool:
    """Whether every file is as it was fetched.

    A digest decides where a server gives one: a content network has an ETag of its own for the same bytes. Else the
    ETag does, else the time of change, else the size; a file of which nothing can be compared has not changed.
    """
    if len(record.pieces) != len(seen):
        return False
    versions = record.versions or (Validator(),) * len(seen)
    for piece, version, now in zip(record.pieces, versions, seen, strict=True):
        if now.sha256 is not None:
            same = now.sha256 == piece.sha256
        elif now.size_bytes not in (None, piece.size_bytes):
            same = False
        elif version.etag and now.validator.etag:
            same = version.etag == now.validator.etag
        else:
            same = version.agrees(now.validator)
        if not same:
            return False
    return True
