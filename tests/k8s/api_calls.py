"""A request as an authorizer sees it: verb, resource and namespace."""

import re

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)

from llmkube.k8s.rbac import Permission, Program
from llmkube.k8s.request import APPLY_PATCH

NAMED = {"POST": "create", "GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
DISCOVERY = re.compile(r"/api(/v1)?|/apis(/[^/]+){0,2}")
"""Paths that list what an API server has, which each account may read."""
UNNAMED = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}


@attrs.frozen
class ApiCall:
    """One request as kube-apiserver's authorizer sees it; an apply of a whole object may also be a `create`."""

    verbs: frozenset[str]
    group: str
    resource: str
    namespace: str
    name: str

    @classmethod
    def of(cls, request: httpx.Request) -> "ApiCall":
        steps = request.url.path.strip("/").split("/")
        group = steps[1] if steps[0] == "apis" else ""
        steps = steps[3:] if steps[0] == "apis" else steps[2:]
        namespace = ""
        if steps[0] == "namespaces" and len(steps) > 2:
            namespace, steps = steps[1], steps[2:]
        name = steps[1] if len(steps) > 1 else ""
        subresource = f"/{steps[2]}" if len(steps) > 2 else ""
        verb = (NAMED if name else UNNAMED)[request.method]
        verbs = {"watch" if verb == "list" and "watch" in request.url.params else verb}
        if request.headers.get("content-type") == APPLY_PATCH and not subresource:
            verbs.add("create")
        return cls(frozenset(verbs), group, steps[0] + subresource, namespace, name)

    def is_of(self, need: Permission, system_namespace: str) -> bool:
        """Whether this need is about the resource of this call, at its place."""
        if (self.group, self.resource) != (need.resource.group, need.plural):
            return False
        if need.place == "served":
            return True
        return (self.namespace if need.resource.namespaced else self.name or system_namespace) == system_namespace

    def missing_in(self, program: Program, system_namespace: str) -> frozenset[str]:
        """The verbs of this call that the program has not declared."""
        needs = (need.verbs for need in program.needs if self.is_of(need, system_namespace))
        return self.verbs.difference(*needs)


def undeclared(calls, program, system_namespace="llmkube-system"):
    """Return the calls that a program makes without having declared them."""
    return {call for call in calls if call.missing_in(program, system_namespace)}


def unused(calls, program, system_namespace="llmkube-system"):
    """Return what a program has declared and never does, as `verb resource` words."""
    left = set()
    for need in program.needs:
        used = frozenset().union(*(call.verbs for call in set(calls) if call.is_of(need, system_namespace)))
        left |= {f"{verb} {need.plural}" for verb in need.verbs - used}
    return left
