"""Parse URLs strictly and once, so that checks and the resolver see the same host.

`getaddrinfo` turns `0x7f000001`, `2130706433`, `127.1`, `0177.0.0.1` and `①②⑦.⓪.⓪.①` all into 127.0.0.1, and libraries
differ on backslashes, tabs and percent signs in a host. None of these has a legitimate use in the URL of a model file,
so they are refused.
"""

import ipaddress
import re
import urllib.parse
from typing import Final

import attrs

_PORTS: Final = {"http": 80, "https": 443}
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")  # resolvers read these as a number at the end of a name
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_SAFE: Final = "!$&'()*+,;=:@/~-._%"  # RFC 3986's pchar, and the percent sign of existing escapes
_MAX_LENGTH: Final = 8192


class BadUrlError(ValueError):
    """The text is not a valid URL; the message is a short reason."""


@attrs.frozen
class WebUrl:
    """An http or https URL in normal form, without its user and password.

    Attributes:
        scheme: `http` or `https`.
        host: A lower-case name, or an address in its canonical form (without brackets).
        port: The port, even if it is the scheme's default.
        target: Path and query, as they are sent.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port, to which credentials are bound."""
        return self.scheme, self.host, self.port

    @property
    def netloc(self) -> str:
        """The Host header: host and, unless it is the scheme's default, port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def path(self) -> str:
        """The path without the query; still escaped."""
        return self.target.partition("?")[0]

    @property
    def shown(self) -> str:
        """The URL for messages, without the query, which may be a signature."""
        return f"{self.scheme}://{self.netloc}{self.path}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}{self.target}"

    def with_path(self, path: str) -> "WebUrl":
        """Return the URL with another path and the same query."""
        _, mark, query = self.target.partition("?")
        return attrs.evolve(self, target=path + mark + query)


@attrs.frozen
class UserInfo:
    """The user and password from a URL, decoded; neither is ever shown."""

    user: str
    password: str = attrs.field(repr=False)


def parse_url(text: str) -> tuple[WebUrl, UserInfo | None]:
    """Parse an absolute http or https URL; its fragment is dropped.

    Raises:
        BadUrlError: It is not one, or its host is in a form that resolvers and checks may read differently.
    """
    if len(text) > _MAX_LENGTH:
        raise BadUrlError(f"it is longer than {_MAX_LENGTH} characters")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise BadUrlError("it is not valid text")
    if _FORBIDDEN.search(text):
        raise BadUrlError("it contains a space, a control character or a backslash")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _PORTS:
        raise BadUrlError("it is not an http or https URL")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    target = rest[len(authority) :].partition("#")[0]
    user_info, at, host_port = authority.rpartition("@")
    host, port = _host_and_port(host_port, _PORTS[scheme])
    path, mark, query = target.partition("?")
    escaped = _escape(path or "/") + (mark + _escape(query, extra="?") if mark else "")
    user, _, password = user_info.partition(":")
    secret = UserInfo(urllib.parse.unquote(user), urllib.parse.unquote(password)) if at and user_info else None
    return WebUrl(scheme, host, port, escaped), secret


def resolve_location(url: WebUrl, location: str) -> WebUrl:
    """Return the target of a `Location` header, relative to a URL; a user and password in it are ignored.

    Raises:
        BadUrlError: The target is not a valid URL.
    """
    try:
        joined = urllib.parse.urljoin(str(url), location)
    except ValueError as exc:
        raise BadUrlError("it is malformed") from exc
    return parse_url(joined)[0]


def _escape(text: str, *, extra: str = "") -> str:
    return urllib.parse.quote(text, safe=_SAFE + extra)


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadUrlError("its IPv6 address is malformed")
        port = rest[1:]
        try:
            if "%" in host:
                raise BadUrlError("its IPv6 address has a zone")
            return ipaddress.IPv6Address(host).compressed, _port(port, default_port)
        except ipaddress.AddressValueError as exc:
            raise BadUrlError("its IPv6 address is malformed") from exc
    host, _, port = text.partition(":")
    return _host(host), _port(port, default_port)


def _port(text: str, default: int) -> int:
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or not 0 < int(text) < 65536:
        raise BadUrlError("its port is not a number from 1 to 65535")
    return int(text)


def _host(text: str) -> str:
    if not text.isascii():
        raise BadUrlError("its host has non-ASCII characters; use the xn-- form of an international name")
    host = text.lower().removesuffix(".")
    if not host:
        raise BadUrlError("it has no host")
    if "%" in host:
        raise BadUrlError("its host has percent escapes")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        # WHATWG: a host that ends in a number is an IPv4 address. Only its canonical form is accepted.
        try:
            return str(ipaddress.IPv4Address(host))
        except ipaddress.AddressValueError as exc:
            raise BadUrlError("its host is a number; use four decimal numbers for an IPv4 address") from exc
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadUrlError("its host is not a valid name")
    return host
