"""What a program may do is what its code says that it does: rights are declared beside the calls, and rendered here.

Each room that talks to the API server says so in a tuple of `Permission`s; a program is the sum of those of its
rooms. The manifests that `kubectl apply` takes are made from that, so a Role has neither too little nor too much by
accident, and the tests compare it with what the programs call.

Server-side apply is the verb `patch`, and `create` too where the object may not exist yet (Kubernetes, "Server-Side
Apply": "requires both").
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import attrs

from llmkube.k8s.resource import Object, Resource

PermissionScope = Literal["served", "system"]
"""`served`: the namespaces whose services are looked after; `system`: the one in which the programs themselves live."""

LIST_AND_WATCH: Final = frozenset({"list", "watch"})
"""What `run_reflector` does."""

APPLY: Final = frozenset({"create", "patch"})
"""What an apply does that may make the object; on a subresource, which is never made, it is `patch` alone."""

ALL_NAMES: Final = "*"
"""Stands for every object of the namespaces that are served."""

_RBAC: Final = "rbac.authorization.k8s.io"
_PART_OF: Final = {"app.kubernetes.io/part-of": "llmkube"}


@attrs.frozen
class Permission:
    """Verbs that some code uses on a kind; of a cluster-scoped kind in `system`, on the system namespace itself.

    Attributes:
        kind: Of the objects.
        verbs: What is done.
        place: Where.
        subresource: Of the objects; empty for the objects themselves.
        names: The only objects; empty for all of the place.
        opt_in: An administrator has to name the objects, or the program does without.
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
        """The resource as rules name it: `models`, `models/status`."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


@attrs.frozen
class Program:
    """One program with everything that its rooms need; its name is that of its ServiceAccount and of its roles."""

    name: str
    needs: tuple[Permission, ...]
    annotations: Mapping[str, str] = {}

    def grant(self, names: Collection[str]) -> "Program":
        """Return the program with what an administrator grants of its opt-in needs: objects by name, or `ALL_NAMES`."""
        chosen = frozenset() if ALL_NAMES in names else frozenset(names)
        fixed = tuple(need for need in self.needs if not need.opt_in)
        opted_in = tuple(attrs.evolve(need, names=chosen, opt_in=False) for need in self.needs if need.opt_in and names)
        return attrs.evolve(self, needs=fixed + opted_in)


def rbac_manifests(program: Program, *, system_namespace: str, namespace: str | None = None) -> list[dict[str, Any]]:
    """Return the objects that let a program do its work, in the order in which they can be applied.

    What an administrator has to opt into is not granted (`Program.grant`).

    Args:
        program: What it needs.
        system_namespace: Where its ServiceAccount and the Leases live; it is part of the result.
        namespace: The only namespace that it looks after, or None for all of them. A program of one namespace gets no
            right on anything cluster-wide.
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
    """Return rules about one object by its name; `create` knows no names, so it stands alone."""
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
