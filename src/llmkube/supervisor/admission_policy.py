"""One ValidatingAdmissionPolicy with its binding as a value, and the CEL expressions that policies have in common."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.k8s.wire.names import HOST_ACCOUNT_PREFIX

_ADMISSION: Final = "admissionregistration.k8s.io/v1"

Checks = Sequence[tuple[str, str]]
"""CEL expressions that have to hold, each with what is said otherwise."""


@attrs.frozen
class Policy:
    """One policy with its binding.

    Attributes:
        name: The end of its name.
        group: API group of the resources.
        resources: Plurals, with subresources.
        operations: Which writes are looked at.
        checks: What has to hold.
        variables: Expressions by name.
        labelled: Only objects with this label are looked at, before or after the write.
        param: API version and kind of the parameter.
        param_ref: Which ones, in a binding.
        inside: Only objects in the system namespace are looked at.
    """

    name: str
    group: str
    resources: tuple[str, ...]
    operations: tuple[str, ...]
    checks: Checks
    variables: Mapping[str, str] = {}
    labelled: str = ""
    param: tuple[str, str] | None = None
    param_ref: Mapping[str, Any] | None = None
    inside: bool = False


def label(holder: str, name: str) -> str:
    """A label of an object, or the empty string."""
    return f"{holder}.metadata.?labels[?'{name}'].orValue('')"


def annotation(holder: str, name: str) -> str:
    """An annotation of an object, or the empty string."""
    return f"{holder}.metadata.?annotations[?'{name}'].orValue('')"


def unchanged(path: str, empty: str) -> str:
    """An optional field is what it was, or empty on an object that is new."""
    return f"object.{path}.orValue({empty}) == (oldObject == null ? {empty} : oldObject.{path}.orValue({empty}))"


def both(expression: str) -> str:
    """An expression with `{}` for the object holds before and after a write, as far as there is one."""
    before, after = expression.format("oldObject"), expression.format("object")
    return f"(oldObject == null || {before}) && (object == null || {after})"


def rendered(policy: Policy, account: str, system_namespace: str) -> list[dict[str, Any]]:
    """Return a policy and its binding, for the accounts of hosts whose names begin with `account`."""
    metadata = {
        "name": f"llmkube-host-{policy.name}.{system_namespace}",
        "labels": {"app.kubernetes.io/part-of": "llmkube"},
    }
    rule = {
        "apiGroups": [policy.group],
        "apiVersions": ["*"],
        "operations": list(policy.operations),
        "resources": list(policy.resources),
    }
    constraints: dict[str, Any] = {"resourceRules": [rule]}
    if policy.labelled:
        constraints["objectSelector"] = {"matchExpressions": [{"key": policy.labelled, "operator": "Exists"}]}
    if policy.inside:
        constraints["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": system_namespace}}
    variables = {
        "host": f"request.userInfo.username.split(':')[3].substring({len(HOST_ACCOUNT_PREFIX)})",
        **policy.variables,
    }
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": constraints,
        "matchConditions": [{"name": "is-a-host", "expression": f"request.userInfo.username.startsWith('{account}')"}],
        "variables": [{"name": name, "expression": text} for name, text in variables.items()],
        "validations": [{"expression": text, "message": said, "reason": "Forbidden"} for text, said in policy.checks],
    }
    binding: dict[str, Any] = {"policyName": metadata["name"], "validationActions": ["Deny"]}
    if policy.param is not None:
        spec["paramKind"] = {"apiVersion": policy.param[0], "kind": policy.param[1]}
        binding["paramRef"] = dict(policy.param_ref or {})
    head = {"apiVersion": _ADMISSION, "metadata": metadata}
    return [
        {**head, "kind": "ValidatingAdmissionPolicy", "spec": spec},
        {**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
    ]
