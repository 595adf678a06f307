"""Render RBAC manifests from the permissions that are declared next to the API calls.

Each module that calls the API server declares its `Permission`s in a tuple; a program has those of its modules. So a
Role grants exactly what the code needs; tests compare it with the calls that the programs make.

Server-side apply requires the verb `patch`, and `create` where the object may not exist yet (Kubernetes, "Server-Side
Apply": "requires both").
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import attrs

from llmkube.k8s.resource import Object, Resource

PermissionScope = Literal["served", "system"]
"""`served`: the namespaces whose services are managed; `system`: the namespace of the programs themselves."""

LIST_AND_WATCH: Final = frozenset({"list", "watch"})
"""The verbs of `run_reflector`."""

APPLY: Final = frozenset({"create", "patch"})
"""The verbs of an apply that may create the object; a subresource is never created and needs only `patch`."""

ALL_NAMES: Final = "*"
"""Every object of the served namespaces."""

_RBAC: Final = "rbac.authorization.k8s.io"
_PART_OF: Final = {"app.kubernetes.io/part-of": "llmkube"}


@attrs.frozen
class Permission:
    """Verbs that the code uses on a kind; for a cluster-scoped kind in `system`, on the system namespace itself.

    Attributes:
        kind: The kind of the objects.
        verbs: The API verbs.
        place: The namespaces.
        subresource: Empty for the objects themselves.
        names: The only objects; empty for all objects in `place`.
        opt_in: Granted only for objects that an administrator names; the program works without it.
    """

    kind: type[Object]
    verbs: frozenset[str]
    place: PermissionScope = "served"
    subresource: str = ""
    names: frozenset[str] = frozenset()
    opt_in: bool = False

    @property
    def resource(self) -> Resource:
        """The coordinates of the kind."""
        return self.kind.RESOURCE

    @property
    def plural(self) -> str:
        """The resource as in RBAC rules: `models`, `models/status`."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


@attrs.frozen
class Program:
    """One program with all its permissions; its ServiceAccount and roles have its name."""

    name: str
    needs: tuple[Permission, ...]
    annotations: Mapping[str, str] = {}

    def grant(self, names: Collection[str]) -> "Program":
        """Return the program with its opt-in permissions granted for the named objects, or for `ALL_NAMES`."""
        chosen = frozenset() if ALL_NAMES in names else frozenset(names)
        fixed = tuple(need for need in self.needs if not need.opt_in)
        opted_in = tuple(attrs.evolve(need, names=chosen, opt_in=False) for need in self.needs if need.opt_in and names)
        return attrs.evolve(self, needs=fixed + opted_in)


def rbac_manifests(program: Program, *, system_namespace: str, namespace: str | None = None) -> list[dict[str, Any]]:
    """Return the manifests that grant a program its permissions, in the order in which they can be applied.

    Opt-in permissions are not granted (see `Program.grant`).

    Args:
        program: The program and its permissions.
        system_namespace: The namespace of its ServiceAccount and of the Leases; it is part of the result.
        namespace: The only namespace that it serves, or None for all. A program of one namespace gets no cluster-wide
            permissions.
    """
    subject = {"kind": "ServiceAccount", "name": program.name, "namespace": system_namespace}
    needs = [need for need in program.needs if not need.opt_in]
    served = [need for need in needs if need.place == "served"]
    system = [need for need in needs if need.place == "system" and need.resource.namespaced]
    clusterwide = [need for need in needs if need.place == "system" and not need.resource.namespaced]
    rules = _rules(served)
    if namespace is None:
        pair = _granted("ClusterRole", program.name, None, rules + _named_rules(clusterwide, system_namespace), subject)
    else:
        namespaced_rules = _rules(need for need in served if need.resource.namespaced)
        pair = _granted("Role", program.name, namespace, namespaced_rules, subject)
    account = _object("v1", "ServiceAccount", program.name, system_namespace)
    if program.annotations:
        account["metadata"]["annotations"] = dict(program.annotations)
    return [
        _object("v1", "Namespace", system_namespace),
        account,
        *pair,
        *_granted("Role", f"{program.name}-system", system_namespace, _rules(system), subject),
    ]


def _rules(needs: Iterable[Permission]) -> list[dict[str, Any]]:
    """Return one rule per API group, set of names and set of verbs, in a stable order."""
    verbs: dict[tuple[str, str, tuple[str, ...]], frozenset[str]] = {}
    for need in needs:
        place = (need.resource.group, need.plural, tuple(sorted(need.names)))
        verbs[place] = verbs.get(place, frozenset()) | need.verbs
    plurals: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, plural, names), allowed in sorted(verbs.items()):
        plurals.setdefault((group, names, tuple(sorted(allowed))), []).append(plural)
    return [
        {
            "apiGroups": [group],
            "resources": resources,
            **({"resourceNames": list(names)} if names else {}),
            "verbs": list(allowed),
        }
        for (group, names, allowed), resources in sorted(plurals.items(), key=lambda item: (item[0][0], item[1]))
    ]


def _named_rules(needs: Iterable[Permission], name: str) -> list[dict[str, Any]]:
    """Return rules for one object by name; `create` gets its own rule, since RBAC cannot restrict it by name."""
    rules = []
    for rule in _rules(needs):
        by_name = [verb for verb in rule["verbs"] if verb != "create"]
        if by_name:
            rules.append({**rule, "verbs": by_name, "resourceNames": [name]})
        if "create" in rule["verbs"]:
            rules.append({**rule, "verbs": ["create"]})
    return rules


def _granted(
    kind: str, name: str, namespace: str | None, rules: list[dict[str, Any]], subject: Mapping[str, str]
) -> list[dict[str, Any]]:
    if not rules:
        return []
    role = _object(f"{_RBAC}/v1", kind, name, namespace)
    binding = _object(f"{_RBAC}/v1", f"{kind}Binding", name, namespace)
    reference = {"apiGroup": _RBAC, "kind": kind, "name": name}
    return [{**role, "rules": rules}, {**binding, "roleRef": reference, "subjects": [dict(subject)]}]


def _object(api_version: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "labels": dict(_PART_OF)}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
