"""HTTP messages as values, and the encoding of their heads."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from http import HTTPStatus
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, unquote

import attrs

T = TypeVar("T")
Origin = tuple[str, int]
"""A host and a port."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_UNSAFE_VALUE = re.compile(r"[\r\n\x00]")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that apply to one connection only and are never forwarded (RFC 9110, 7.6.1)."""


def _freeze(items: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(items)


def _folded(items: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name.lower(), value) for name, value in items)


@attrs.frozen(repr=False)
class Headers:
    """Header lines in their order and spelling, found by name regardless of case.

    Two are equal if they have the same lines in the same order, regardless of the case of names.
    """

    _items: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=_freeze, eq=_folded)
    _names: tuple[str, ...] = attrs.field(init=False, eq=False)
    _derived: dict[Callable[["Headers"], Any], Any] = attrs.field(init=False, eq=False, factory=dict)

    @_names.default
    def _fold_names(self) -> tuple[str, ...]:
        return tuple([name.lower() for name, _ in self._items])

    def derived(self, of: Callable[["Headers"], T]) -> T:
        """Return the result of a pure function of these lines; it is computed once, and kept with them.

        Heads that are cached by their bytes share one object, so the functions of a program run once for each client.
        """
        try:
            found: T = self._derived[of]
        except KeyError:
            found = self._derived[of] = of(self)
        return found

    @classmethod
    def of(cls, mapping: Mapping[str, str]) -> Self:
        """Return headers from a mapping, one line per key."""
        return cls(mapping.items())

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the value of the first line with this name, or `default`."""
        folded = name.lower()
        return self._items[self._names.index(folded)][1] if folded in self._names else default

    def get_all(self, name: str) -> tuple[str, ...]:
        """Return the values of every line with this name, in order."""
        folded = name.lower()
        return tuple(self._items[i][1] for i, other in enumerate(self._names) if other == folded)

    def joined(self) -> dict[str, str]:
        """Return the values by lower-case name; those of the same name are joined by commas (RFC 9110, 5.3)."""
        found: dict[str, str] = {}
        for (_, value), name in zip(self._items, self._names, strict=True):
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found

    def tokens(self, name: str) -> frozenset[str]:
        """Return the comma-separated elements of every line with this name, in lower case."""
        elements = (element.strip().lower() for value in self.get_all(name) for element in value.split(","))
        return frozenset(filter(None, elements))

    def without(self, *names: str) -> Self:
        """Return a copy without the lines that have one of these names."""
        return type(self)(self.lines_without({name.lower() for name in names}))

    def lines_without(self, folded: Collection[str]) -> list[tuple[str, str]]:
        """Return the lines that have none of these names, given in lower case."""
        return [item for item, name in zip(self._items, self._names, strict=True) if name not in folded]

    def lines_of(self, folded: Collection[str], prefixes: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        """Return the lines that have one of these names, or a name with one of these prefixes, given in lower case."""
        pairs = zip(self._items, self._names, strict=True)
        return [item for item, name in pairs if name in folded or name.startswith(prefixes)]

    def with_(self, name: str, value: str) -> Self:
        """Return a copy in which this is the only line with this name, in the last place."""
        return type(self)((*self.lines_without((name.lower(),)), (name, value)))

    def with_value(self, name: str, value: str) -> Self:
        """Return a copy in which the first line with this name, which must exist, has another value."""
        at, items = self._names.index(name.lower()), list(self._items)
        items[at] = items[at][0], value
        return type(self)(items)

    def end_to_end(self) -> Self:
        """Return a copy that a proxy may forward: without hop-by-hop headers and those that `Connection` names."""
        return self.without(*HOP_BY_HOP, *self.tokens("connection"))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._names

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Headers({list(self._items)!r})"


NO_HEADERS = Headers()


def origin_form(target: str) -> str:
    """Return a target in origin form (`/path?query`), without scheme and host if it is absolute (RFC 9112, 3.2.2)."""
    if target.startswith("/") or "://" not in target:
        return target
    authority_and_path = target.partition("://")[2]
    cut = re.search(r"[/?]", authority_and_path)
    rest = authority_and_path[cut.start() :] if cut else ""
    return rest if rest.startswith("/") else f"/{rest}"


def authority_of(target: str) -> str | None:
    """Return the host of an absolute target, with the port if it has one; None for another target."""
    if target.startswith("/") or "://" not in target:
        return None
    return re.split(r"[/?]", target.partition("://")[2], maxsplit=1)[0]


def path_of(target: str) -> str:
    """Return the percent-decoded path of a target, without its query."""
    return unquote(origin_form(target).partition("?")[0], errors="replace")


@attrs.frozen(slots=False)  # cached properties keep their values in the instance's dict
class Request:
    """One whole request; `target` is as in the request line."""

    method: str
    target: str
    headers: Headers = NO_HEADERS
    body: bytes = b""

    @cached_property
    def origin_target(self) -> str:
        """Target in origin form."""
        return origin_form(self.target)

    @property
    def raw_path(self) -> str:
        """Path as sent, without the query."""
        return self.origin_target.partition("?")[0]

    @cached_property
    def path(self) -> str:
        """Percent-decoded path, without the query."""
        return path_of(self.target)

    @cached_property
    def query(self) -> tuple[tuple[str, str], ...]:
        """Decoded query parameters in order; one without a value has the value ""."""
        pairs = parse_qsl(self.origin_target.partition("?")[2], keep_blank_values=True, errors="replace")
        return tuple(pairs)

    def param(self, name: str, default: str = "") -> str:
        """Return the first query parameter with this name, or `default`."""
        return next((value for key, value in self.query if key == name), default)


@attrs.frozen
class Response:
    """One whole response; its Content-Length is that of the body."""

    status: int
    headers: Headers = NO_HEADERS
    body: bytes = b""

    @classmethod
    def json(cls, status: int, obj: Any, *, headers: Headers = NO_HEADERS) -> Self:
        """Return a response with an object as JSON."""
        text = json.dumps(obj, separators=(",", ":"))
        return cls(status, headers.with_("Content-Type", "application/json"), text.encode())

    @classmethod
    def text(cls, status: int, text: str, *, headers: Headers = NO_HEADERS) -> Self:
        """Return a response with plain text in UTF-8."""
        return cls(status, headers.with_("Content-Type", "text/plain; charset=utf-8"), text.encode())


def netloc(origin: Origin) -> str:
    """Return an origin as in the Host header."""
    host, port = origin
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def status_allows_body(status: int) -> bool:
    """Return whether a response with this status has a body (RFC 9110, 6.4.1)."""
    return status >= 200 and status not in (204, 304)


def encode_request_head(method: str, target: str, headers: Headers) -> bytes:
    """Return the encoded head of a request.

    Raises:
        ValueError: A header's name or value is invalid: a bug of the caller.
    """
    if not _TOKEN.fullmatch(method) or not re.fullmatch(r"[!-~]+", target):
        raise ValueError(f"not a request line: {method!r} {target!r}")
    return f"{method} {target} HTTP/1.1\r\n".encode("latin-1") + encode_lines(headers) + b"\r\n"


@lru_cache(maxsize=1024)
def _is_token(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None


@cache
def status_line(status: int) -> bytes:
    """Return the first line of a response."""
    return f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode("ascii")


def encode_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return encoded header lines.

    Raises:
        ValueError: A header's name or value is invalid: a bug of the caller.
    """
    lines = []
    for name, value in headers:
        if not _is_token(name) or _UNSAFE_VALUE.search(value):
            raise ValueError(f"not a header: {name!r}: {value!r}")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("latin-1")
