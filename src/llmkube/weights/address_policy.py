"""Which addresses an object may make this host talk to: a table of our own, judged on the address that is dialled.

`ipaddress.is_global` is not enough: it lets through NAT64 (`64:ff9b::7f00:1`), IPv4-compatible addresses
(`::127.0.0.1`), multicast and 6to4 relays, and what it says changes between versions of Python. The table follows the
IANA special-purpose registries (RFC 6890 and its updates) and the metadata services that clouds document.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

import attrs

from llmkube.base.errors import UserError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@attrs.frozen
class Rule:
    """Why an address is refused; `always` means that no setting allows it."""

    network: Network
    name: str
    always: bool = False


def _rules(*rows: tuple[str, str] | tuple[str, str, bool]) -> tuple[Rule, ...]:
    return tuple(Rule(ipaddress.ip_network(row[0]), *row[1:]) for row in rows)


# The first match counts, so the narrow rows stand above the wide ones that hold them.
_IPV4: Final = _rules(
    ("169.254.169.254/32", "cloud metadata service", True),
    ("169.254.170.2/32", "cloud credentials service", True),
    ("169.254.170.23/32", "cloud credentials service", True),
    ("100.100.100.200/32", "cloud metadata service", True),
    ("168.63.129.16/32", "cloud host service", True),
    ("192.0.0.192/32", "cloud metadata service", True),
    ("0.0.0.0/8", "unspecified", True),
    ("10.0.0.0/8", "private network"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private network"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.31.196.0/24", "AS112"),
    ("192.52.193.0/24", "multicast tunnelling"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private network"),
    ("192.175.48.0/24", "AS112"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast", True),
    ("240.0.0.0/4", "reserved or broadcast", True),
)
_IPV6: Final = _rules(
    ("::/128", "unspecified", True),
    ("fd00:ec2::254/128", "cloud metadata service", True),
    ("fd00:ec2::23/128", "cloud credentials service", True),
    ("fd20:ce::254/128", "cloud metadata service", True),
    ("::1/128", "loopback"),
    ("::/96", "IPv4-compatible", True),
    ("::ffff:0:0:0/96", "IPv4-translated", True),
    ("64:ff9b:1::/48", "local NAT64"),
    ("100::/64", "discard only", True),
    ("2001::/32", "Teredo", True),
    ("2001::/23", "protocol assignments"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4", True),
    ("3fff::/20", "documentation"),
    ("fc00::/7", "private network"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast", True),
)
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")  # all that IANA has handed out so far
_ELSEWHERE: Final = Rule(ipaddress.IPv6Network("::/0"), "not global unicast")
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")  # networks without IPv4 reach every public IPv4 host through it


def matching_rule(address: Address) -> Rule | None:
    """Return the rule that refuses an address, or None if it is a public one.

    An IPv4 address inside an IPv4-mapped or a NAT64 one is judged as what it is; the other ways to wrap one (IPv4-
    compatible, 6to4, Teredo, translated) are refused, whatever they hold.
    """
    plain = embedded_ipv4(address)
    if isinstance(plain, ipaddress.IPv4Address):
        return next((rule for rule in _IPV4 if plain in rule.network), None)
    found = next((rule for rule in _IPV6 if plain in rule.network), None)
    return found or (None if plain in _GLOBAL_UNICAST else _ELSEWHERE)


def embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv4-mapped or a NAT64 address really leads to; any other one as it is."""
    if isinstance(address, ipaddress.IPv6Address) and (address in _MAPPED or address in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


@attrs.frozen
class AddressPolicy:
    """What a source may lead to, which depends on who named it.

    Attributes:
        allowed: Networks that may be reached although they are not public; the operator's setting. Multicast, cloud
            metadata services and the like stay refused.
        from_operator: The source stands on the operator's own command line: any address that is not refused always,
            and redirects from http to http. Otherwise it came from an object, which every user of a namespace
            can write.
    """

    allowed: tuple[Network, ...] = ()
    from_operator: bool = False

    def refusal(self, address: Address) -> Rule | None:
        """Return the rule that refuses this address, or None if it may be dialled."""
        rule = matching_rule(address)
        if rule is None or rule.always:
            return rule
        plain = embedded_ipv4(address)
        if self.from_operator or any(plain in network for network in self.allowed):
            return None
        return rule


def parse_networks(texts: Iterable[str], *, field: str = "--allow-private-sources") -> tuple[Network, ...]:
    """Read networks such as `192.168.0.0/16`, or single addresses.

    Raises:
        UserError: One of them is neither.
    """
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text.strip()))
        except ValueError as exc:
            raise UserError(f"{text!r} is not a network such as 192.168.0.0/16 ({exc})", field=field) from exc
    return tuple(networks)
