"""The addresses to which this host may connect for an object; checked against the address that is dialled.

`ipaddress.is_global` is not enough: it allows NAT64 (`64:ff9b::7f00:1`), IPv4-compatible addresses (`::127.0.0.1`),
multicast and 6to4 relays, and its result changes between versions of Python. Our table follows the IANA special-purpose
registries (RFC 6890 and its updates) and the metadata services that clouds document.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.package_data import read_table

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@attrs.frozen
class Rule:
    """A refused network; `always` means that no setting allows it."""

    network: Network
    name: str
    always: bool = False


_ROWS: Final = read_table(__package__, "address_rules")
_IPV4: Final = tuple(Rule(ipaddress.ip_network(network), *rest) for network, *rest in _ROWS["ipv4"])
_IPV6: Final = tuple(Rule(ipaddress.ip_network(network), *rest) for network, *rest in _ROWS["ipv6"])
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")  # the only range that IANA has allocated so far
_NOT_GLOBAL: Final = Rule(ipaddress.IPv6Network("::/0"), "not global unicast")
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")  # networks without IPv4 reach every public IPv4 host through it


def matching_rule(address: Address) -> Rule | None:
    """Return the rule that refuses an address, or None if it is public.

    For an IPv4-mapped or NAT64 address, the embedded IPv4 address is checked; other addresses with an embedded IPv4
    address (IPv4-compatible, 6to4, Teredo, translated) are always refused.
    """
    plain = embedded_ipv4(address)
    if isinstance(plain, ipaddress.IPv4Address):
        return next((rule for rule in _IPV4 if plain in rule.network), None)
    found = next((rule for rule in _IPV6 if plain in rule.network), None)
    return found or (None if plain in _GLOBAL_UNICAST else _NOT_GLOBAL)


def embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address in an IPv4-mapped or NAT64 address; any other address unchanged."""
    if isinstance(address, ipaddress.IPv6Address) and (address in _MAPPED or address in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


@attrs.frozen
class AddressPolicy:
    """The addresses that a source may resolve to, depending on the author of the source.

    Attributes:
        allowed: Networks that may be contacted although they are not public, set by the operator. Multicast, cloud
            metadata services and the like remain refused.
        from_operator: The source is from the operator's command line: all addresses that are not always refused are
            allowed, and redirects from http to http. Otherwise it is from an object, which every user of a
            namespace can write.
    """

    allowed: tuple[Network, ...] = ()
    from_operator: bool = False

    def refusal(self, address: Address) -> Rule | None:
        """Return the rule that refuses this address, or None if it is allowed."""
        rule = matching_rule(address)
        if rule is None or rule.always:
            return rule
        plain = embedded_ipv4(address)
        if self.from_operator or any(plain in network for network in self.allowed):
            return None
        return rule

    def refusal_of_name(self, host: str) -> Rule | None:
        """Return the rule that refuses a name which only a proxy can resolve, or None if it is allowed."""
        rows = (rest for domain, *rest in _ROWS["names"] if f".{host}".endswith(f".{domain}"))
        row = next(rows, None if "." in host else ["a name without a domain"])
        rule = Rule(_NOT_GLOBAL.network, *row) if row else None
        return None if rule is not None and self.from_operator and not rule.always else rule


def parse_networks(texts: Iterable[str], *, field: str = "--allow-private-sources") -> tuple[Network, ...]:
    """Parse networks such as `192.168.0.0/16`, or single addresses.

    Raises:
        UserError: A text is neither.
    """
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text.strip()))
        except ValueError as exc:
            raise UserError(f"{text!r} is not a network such as 192.168.0.0/16 ({exc})", field=field) from exc
    return tuple(networks)
