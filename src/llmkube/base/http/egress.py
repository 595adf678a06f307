"""The way to servers outside: the proxy for each target, and certificates to trust besides the system's. Pure.

The first of these that applies to a target determines its proxy:

1. the setting `--proxy`: the first TARGET that matches
2. this machine itself is reached directly
3. `NO_PROXY`
4. `HTTPS_PROXY` or `HTTP_PROXY`, by the scheme of the target's URL; then `ALL_PROXY`

A variable in lower case takes precedence over the one in upper case, as in curl.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs

from llmkube.base.errors import UserError
from llmkube.base.http.errors import ConnectError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

Variable = tuple[str, str]
"""Name and value; both are empty without one."""

FIELD: Final = "--proxy"
RULES_VARIABLE: Final = "LLMKUBE_PROXY"
DIRECT: Final = "direct"
"""The proxy of a target that is reached without one."""

PROXY_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    scheme: (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY") for scheme in ("https", "http")
}
"""Variables with the proxy for URLs of a scheme; the first that is set takes precedence."""

BYPASS_VARIABLES: Final = ("no_proxy", "NO_PROXY")

_NAME: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_WITH_PORT: Final = re.compile(r"(.+):([0-9]{1,5})", re.ASCII)


@attrs.frozen
class Targets:
    """Servers that an entry of `NO_PROXY` or of the setting names.

    Attributes:
        text: As written.
        name: A domain, which includes its subdomains; `*` for every server; empty for addresses.
        network: Addresses, for URLs that have an address in place of a name.
        port: The only port; 0 for every one.
    """

    text: str
    name: str
    network: Network | None
    port: int

    @classmethod
    def parse(cls, text: str, field: str) -> "Targets":
        """Parse `*`, a name, `.name`, `*.name`, an address or a network, each also with a port.

        Raises:
            UserError: It has another form.
        """
        host, port = text.lower(), 0
        if (network := _network(host)) is None and (parts := _WITH_PORT.fullmatch(host)):
            host, port = parts[1], int(parts[2])
            network = _network(host)
        name = "" if network is not None else host if host == "*" else host.removeprefix("*").strip(".")
        if network is None and name != "*" and not _NAME.fullmatch(name):
            wanted = "a name, an address or a network, such as example.com, 10.1.2.3, 10.0.0.0/8 or example.com:8443"
            raise UserError(f"{text!r} is not {wanted}; correct or remove it", field=field)
        return cls(text, name, network, port)

    def match(self, host: str, port: int) -> bool:
        """Return whether they include the server at a host and port."""
        if self.port not in {0, port}:
            return False
        if self.name == "*":
            return True
        address = _address(host)
        if self.network is not None:
            return address is not None and address in self.network
        return address is None and (host == self.name or host.endswith(f".{self.name}"))


@attrs.frozen
class Egress:
    """The proxies and the additional certificates of one program.

    A variable that cannot be used is an error when a server is to be reached through the proxy, since the environment
    is not only LLMKube's.

    Attributes:
        rules: Proxies of the setting; an empty URL means none.
        proxies: Name and value of the variable with the proxy for a scheme.
        bypassed: Name and value of the variable with targets that have no proxy.
        ca_file: Certificates to trust besides the system's.
    """

    rules: tuple[tuple[Targets, str], ...] = attrs.field(default=(), repr=False)
    proxies: Mapping[str, Variable] = attrs.field(factory=dict, repr=False)
    bypassed: Variable = ("", "")
    ca_file: Path | None = None

    @classmethod
    def of(cls, rules: Iterable[str], ca_file: Path | None, environ: Mapping[str, str]) -> "Egress":
        """Return the egress of the setting `--proxy` and an environment.

        Raises:
            UserError: A rule is not TARGET=URL or TARGET=direct; the message has no credentials.
        """
        found = {scheme: _first(names, environ) for scheme, names in PROXY_VARIABLES.items()}
        proxies = {scheme: variable for scheme, variable in found.items() if variable[1]}
        return cls(tuple(map(_parse_rule, rules)), proxies, _first(BYPASS_VARIABLES, environ), ca_file)

    @property
    def variables(self) -> Mapping[str, str]:
        """The variables in use."""
        return {name: text for name, text in (*self.proxies.values(), self.bypassed) if text}

    def proxy_urls(self) -> Sequence[str]:
        """Return the URLs of all proxies, which may contain credentials; empty if none is used.

        Raises:
            UserError: A variable is invalid; the message has no credentials.
        """
        self._bypassed_targets()
        found = [url for _, url in self.rules] + [parse_proxy(text, name) for name, text in self.proxies.values()]
        return list(dict.fromkeys(filter(None, found)))

    def proxy_of(self, scheme: str, host: str, port: int) -> str:
        """Return the URL of the proxy for a server, by the host in the request's URL; "" to connect directly.

        Raises:
            ConnectError: A variable that applies to the server is invalid; the message has no credentials.
        """
        if not self.rules and scheme not in self.proxies:
            return ""
        host = host.lower().rstrip(".")
        local = _is_this_machine(host)
        for targets, url in self.rules:
            if targets.match(host, port) and not (local and targets.name == "*"):
                return url
        name, text = self.proxies.get(scheme, ("", ""))
        try:
            if local or not text or any(targets.match(host, port) for targets in self._bypassed_targets()):
                return ""
            return parse_proxy(text, name)
        except UserError as error:
            raise ConnectError(f"cannot connect to {host}: {error}") from error

    def _bypassed_targets(self) -> Sequence[Targets]:
        name, text = self.bypassed
        return [Targets.parse(word, name) for word in re.split(r"[,\s]+", text) if word]


DIRECTLY: Final = Egress()
"""Without proxies, and with the system's certificates only."""


def parse_proxy(text: str, field: str) -> str:
    """Return the URL of a proxy; without a scheme it is an `http` proxy.

    Raises:
        UserError: It is not the URL of an `http` or `https` proxy; the message has no credentials.
    """
    text = text.strip()
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in PROXY_VARIABLES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or re.search(r"[\s\x00-\x1f]", url):
        wanted = "write http://HOST:PORT or https://HOST:PORT, with special characters of a password as %XX"
        raise UserError(f"{redacted(url)} is not a proxy that can be used; {wanted}", field=field)
    return url


def redacted(url: str) -> str:
    """Return the URL of a proxy without user and password."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2] if separator else url.rpartition("@")[2]


def _parse_rule(text: str) -> tuple[Targets, str]:
    target, equals, proxy = (word.strip() for word in text.partition("="))
    if not equals or "://" in target or not ("://" in proxy or proxy == DIRECT):
        wanted = f"write *=http://HOST:PORT for every server, NAME=http://HOST:PORT, or NAME={DIRECT}"
        raise UserError(f"{redacted(text)} is not TARGET=URL; {wanted}", field=FIELD)
    return Targets.parse(target, FIELD), "" if proxy == DIRECT else parse_proxy(proxy, FIELD)


def _first(names: Iterable[str], environ: Mapping[str, str]) -> Variable:
    """Return the first variable that is set."""
    return next(((name, text) for name in names if (text := environ.get(name, "").strip())), ("", ""))


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.removeprefix("[").removesuffix("]"), strict=False)
    except ValueError:
        return None


def _address(host: str) -> Address | None:
    network = _network(host)
    address = network.network_address if network is not None else None
    return getattr(address, "ipv4_mapped", None) or address


def _is_this_machine(host: str) -> bool:
    address = _address(host)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")
