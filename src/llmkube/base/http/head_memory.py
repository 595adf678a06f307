"""What was made of the last heads: a head is a pure function of its bytes, and peers repeat themselves."""

import re
from typing import Final, TypeVar

import httptools

from llmkube.base.http.heads import HeadReader, RequestHead, ResponseHead
from llmkube.base.http.limits import Limits

MAX_KEPT_BYTES: Final = 4096
"""The longest head that is kept."""

MAX_KEPT_HEADS: Final = 1024

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*(?=\r\n)", re.IGNORECASE)

_H = TypeVar("_H", RequestHead, ResponseHead)


class HeadMemory:
    """What was made of the last heads, found by their bytes; Content-Length may differ, as it does between chats.

    It takes a head that came whole, and ends where it seems to. Every other one is for a reader.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: dict[bytes, RequestHead] = {}
        self._responses: dict[bytes, ResponseHead] = {}

    def request(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Return the head at the beginning of these bytes and what comes after it; None of one for a reader.

        Raises:
            MalformedError: Refused, with the status to answer.
        """
        raw = self._whole(data)
        if raw is None:
            return None
        key, length = _cut_length(raw)
        head = self._requests.get(key)
        if head is None:
            reader = HeadReader.of_requests(self._limits)
            reader.feed_whole(raw)
            head = reader.request()
            _keep(self._requests, key, head)
        elif head.length != length:
            head = _with_length(head, length)
        return head, data[len(raw) :]

    def response(self, data: bytes) -> tuple[ResponseHead, bytes] | None:
        """Return the head of the final answer at the beginning of these bytes and what comes after it.

        Raises:
            MalformedError: Not an answer that this client understands.
        """
        raw = self._whole(data)
        if raw is None:
            return None
        key, length = _cut_length(raw)
        head = self._responses.get(key)
        if head is None:
            reader = HeadReader(httptools.HttpResponseParser, self._limits)
            reader.feed_whole(raw)
            head = reader.response()
            if head.status < 200:
                return None
            _keep(self._responses, key, head)
        elif head.length != length:
            head = _with_length(head, length)
        return head, data[len(raw) :]

    def _whole(self, data: bytes) -> bytes | None:
        """Return a head that ends at its first empty line, with line ends that leave no doubt where that is."""
        end = data.find(b"\r\n\r\n")
        if end <= 0 or end + 4 > min(MAX_KEPT_BYTES, self._limits.max_head_bytes):
            return None
        raw = data[: end + 4]
        clear = raw[0] not in b"\r\n" and raw.find(b"\n\n") < 0 and raw.find(b"\n\r\n") == end + 1
        return raw if clear else None


def _keep(heads: dict[bytes, _H], key: bytes, head: _H) -> None:
    if len(heads) >= MAX_KEPT_HEADS:
        heads.clear()  # peers that never repeat themselves gain nothing from what was kept of others
    heads[key] = head


def _cut_length(raw: bytes) -> tuple[bytes, int | None]:
    """Return a head whose Content-Length has no digits, and what they said."""
    found = _LENGTH.search(raw)
    return (raw, None) if found is None else (raw[: found.start(1)] + raw[found.end(1) :], int(found[1]))


def _with_length(head: _H, length: int | None) -> _H:
    """Return a head with the same lines but for its length: else their keys would differ."""
    twin: _H = object.__new__(type(head))  # a tenth of what `attrs.evolve` costs, for almost every chat
    twin.__dict__.update(head.__dict__, length=length, like=head)
    for cached in ("headers", "joined"):  # those have the other length
        twin.__dict__.pop(cached, None)
    return twin
