"""Validation of Endpoints and EndpointSlices; addresses that mean something else on each machine are refused.

Facts: `k8s.io/kubernetes/pkg/apis/core/validation` and `pkg/apis/discovery/validation`. Multicast addresses beyond the
link-local ones are accepted, as in Kubernetes.
"""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from llmkube.apiserver.values.field_errors import (
    FieldError,
    at,
    at_item,
    duplicate,
    immutable,
    invalid,
    not_supported,
    required,
    too_many,
)
from llmkube.apiserver.values.json_values import compact
from llmkube.k8s.wire import name_rules

_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_ADDRESS_TYPES: Final = ("FQDN", "IPv4", "IPv6")
_MAX_ENDPOINTS: Final = 1000
_MAX_ADDRESSES: Final = 100
_MAX_PORTS: Final = 20_000
_LINK_LOCAL_MULTICAST: Final = (ipaddress.ip_network("224.0.0.0/24"), ipaddress.ip_network("ff02::/16"))

_LEADING_ZERO: Final = re.compile(r"(?<![0-9])0+(?=[0-9])")
_NO_ADDRESS: Final = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"

Old = Mapping[str, Any] | None


def check_slice(obj: Mapping[str, Any], old: Old) -> Iterator[FieldError]:
    """Validate an EndpointSlice."""
    kind = obj.get("addressType") or ""
    if not kind:
        yield required("addressType")
    elif kind not in _ADDRESS_TYPES:
        yield not_supported("addressType", kind, _ADDRESS_TYPES)
    endpoints = obj.get("endpoints") or ()
    if len(endpoints) > _MAX_ENDPOINTS:
        yield too_many("endpoints", len(endpoints), _MAX_ENDPOINTS)
        return
    if old is not None and kind != old.get("addressType"):
        yield immutable("addressType", kind)
    before = set(map(compact, (old or {}).get("endpoints") or ()))
    for index, endpoint in enumerate(endpoints):
        if compact(endpoint) not in before:  # an unchanged endpoint may stay
            yield from _check_endpoint(endpoint, kind, at_item("endpoints", index))
    yield from _check_slice_ports(obj.get("ports") or (), "ports")


def _check_endpoint(endpoint: Mapping[str, Any], kind: str, path: str) -> Iterator[FieldError]:
    where = at(path, "addresses")
    addresses = endpoint.get("addresses") or ()
    if not addresses:
        yield required(where, "must contain at least 1 address")
    elif len(addresses) > _MAX_ADDRESSES:
        yield too_many(where, len(addresses), _MAX_ADDRESSES)
    else:
        for index, address in enumerate(addresses):
            yield from _check_address(address, kind, where, at_item(where, index))
    yield from _check_text(name_rules.label, endpoint.get("hostname") or None, at(path, "hostname"))
    yield from _check_text(name_rules.subdomain, endpoint.get("nodeName"), at(path, "nodeName"))


def _check_address(address: str, kind: str, listed: str, path: str) -> Iterator[FieldError]:
    if kind == "FQDN":
        yield from _check_text(name_rules.subdomain, address, path)
        return
    version = {"IPv4": 4, "IPv6": 6}.get(kind)
    if version is None:
        return
    if problem := _address_problem(address):
        yield invalid(path, address, problem)
        return
    parsed = ipaddress.ip_address(address)
    if parsed.version != version:
        yield invalid(listed, address, f"must be an {kind} address")
    elif str(parsed) != address:
        yield invalid(path, address, f'must be in canonical form ("{parsed}")')
        return
    yield from check_not_special(address, path)


def _address_problem(address: str) -> str:
    """Return why an address is invalid, or is read differently by different programs; empty when it is fine."""
    if _LEADING_ZERO.search(address) and _parse(_LEADING_ZERO.sub("", address)) is not None and ":" not in address:
        return "must not have leading 0s"
    parsed = _parse(address)
    if parsed is None:
        return _NO_ADDRESS
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        return "must not be an IPv4-mapped IPv6 address"
    return ""


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return None if "%" in address else parsed


def check_reachable(address: str, path: str) -> Iterator[FieldError]:
    """Refuse an address that is invalid or ambiguous, or by which other machines cannot reach this endpoint."""
    if problem := _address_problem(address):
        yield invalid(path, address, problem)
    else:
        yield from check_not_special(address, path)


def check_not_special(address: str, path: str) -> Iterator[FieldError]:
    """Refuse an address by which other machines cannot reach this endpoint."""
    parsed = _parse(address)
    if parsed is None:
        yield invalid(path, address, _NO_ADDRESS)
    elif parsed.is_unspecified:
        yield invalid(path, address, f"may not be unspecified ({parsed})")
    elif parsed.is_loopback:
        yield invalid(path, address, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
    elif parsed.is_link_local:
        yield invalid(path, address, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    elif any(parsed in network for network in _LINK_LOCAL_MULTICAST):
        yield invalid(path, address, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")


def _check_slice_ports(ports: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    if len(ports) > _MAX_PORTS:
        yield too_many(path, len(ports), _MAX_PORTS)
        return
    seen: set[str] = set()
    for index, port in enumerate(ports):
        where = at_item(path, index)
        name = port.get("name") or ""
        yield from _check_text(name_rules.label, name or None, at(where, "name"))
        if name in seen:
            yield duplicate(at(where, "name"), name)
        seen.add(name)
        yield from check_protocol(port, where)
        yield from check_app_protocol(port, where)


def _check_text(rule: Callable[[str], str], text: str | None, path: str) -> Iterator[FieldError]:
    """Apply one of `name_rules` to a text; None is valid."""
    if text is not None and (problem := rule(text)):
        yield invalid(path, text, problem)


def check_protocol(port: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate a port's protocol."""
    protocol = port.get("protocol") or ""
    if not protocol:
        yield required(at(path, "protocol"))
    elif protocol not in _PROTOCOLS:
        yield not_supported(at(path, "protocol"), protocol, _PROTOCOLS)


def check_app_protocol(port: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate a port's application protocol, which is a hint."""
    yield from _check_text(name_rules.qualified, port.get("appProtocol"), at(path, "appProtocol"))


def check_port_number(number: Any, path: str) -> Iterator[FieldError]:
    """Validate a port's number."""
    if not isinstance(number, int) or not 1 <= number <= 65535:
        yield invalid(path, number, "must be between 1 and 65535, inclusive")


def _check_ip(address: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    ip = address.get("ip") or ""
    problem = _address_problem(ip)
    if problem:
        yield invalid(at(path, "ip"), ip, "must be a valid IP address" if problem == _NO_ADDRESS else problem)
    if not problem or problem == _NO_ADDRESS:
        yield from check_not_special(ip, at(path, "ip"))
    yield from _check_text(name_rules.label, address.get("hostname") or None, at(path, "hostname"))


def check_endpoints(obj: Mapping[str, Any], _old: Old) -> Iterator[FieldError]:
    """Validate an Endpoints object."""
    for index, subset in enumerate(obj.get("subsets") or ()):
        path = at_item("subsets", index)
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            yield required(path, "must specify `addresses` or `notReadyAddresses`")
        for group in ("addresses", "notReadyAddresses"):
            for place, address in enumerate(subset.get(group) or ()):
                yield from _check_ip(address, at_item(at(path, group), place))
        ports = subset.get("ports") or ()
        for place, port in enumerate(ports):
            where = at_item(at(path, "ports"), place)
            name = port.get("name") or ""
            if len(ports) > 1 and not name:
                yield required(at(where, "name"))
            yield from _check_text(name_rules.label, name or None, at(where, "name"))
            yield from check_port_number(port.get("port"), at(where, "port"))
            yield from check_protocol(port, where)
            yield from check_app_protocol(port, where)


def fill_slice(obj: dict[str, Any]) -> None:
    """Drop the field that only the beta version of slices had."""
    for endpoint in obj.get("endpoints") or ():
        endpoint.pop("deprecatedTopology", None)


def slice_warnings(obj: Mapping[str, Any]) -> list[str]:
    """Return the warning about FQDN addresses, which no proxy uses."""
    return ["spec.addressType: FQDN endpoints are deprecated"] if obj.get("addressType") == "FQDN" else []


def address_warnings(obj: Mapping[str, Any]) -> list[str]:
    """Return the warnings about IPv6 addresses of an Endpoints object that are not in canonical form."""
    messages = []
    for index, subset in enumerate(obj.get("subsets") or ()):
        for group in ("addresses", "notReadyAddresses"):
            for place, address in enumerate(subset.get(group) or ()):
                where = at_item(at(at_item("subsets", index), group), place)
                messages += spelling_warnings(address.get("ip") or "", at(where, "ip"))
    return messages


def spelling_warnings(address: str, path: str) -> list[str]:
    """Return the warning about an IPv6 address that is not in canonical form."""
    parsed = _parse(address)
    if not isinstance(parsed, ipaddress.IPv6Address) or parsed.ipv4_mapped is not None or str(parsed) == address:
        return []
    return [f'{path}: IPv6 address "{address}" should be in RFC 5952 canonical format ("{parsed}")']
