"""Render ValidatingAdmissionPolicies, which restrict the writes of our programs' accounts, from short templates. Pure.

A template has `checks`, CEL expressions that must hold with the message of a refusal, and `variables` for them.
`labelled` limits a policy to objects that have this label before or after the write, `inside` to objects in the system
namespace; `param` and `paramRef` are those of Kubernetes.
"""

from collections.abc import Iterable, Mapping
from string import Template
from typing import Any

import attrs


def substitute(template: Any, values: Mapping[str, object]) -> Any:
    """Return a part of a template with its strings substituted; after parsing, so no value can change the YAML."""
    match template:
        case str():
            return Template(template).substitute(values)
        case dict():
            return {substitute(name, values): substitute(value, values) for name, value in template.items()}
        case list():
            return [substitute(each, values) for each in template]
    return template


@attrs.frozen
class Writer:
    """The accounts that a set of policies restricts.

    Attributes:
        name: Part of the policies' names.
        condition: The condition of requests that the policies apply to.
        variables: CEL variables of every policy.
    """

    name: str
    condition: Mapping[str, str]
    variables: Mapping[str, str] = {}

    def policies(self, templates: Iterable[Mapping[str, Any]], system_namespace: str) -> list[dict[str, Any]]:
        """Return each policy and its binding."""
        return [each for one in templates for each in self._render(one, system_namespace)]

    def _render(self, policy: Mapping[str, Any], system_namespace: str) -> list[dict[str, Any]]:
        metadata = {
            "name": f"llmkube-{self.name}-{policy['name']}.{system_namespace}",
            "labels": {"app.kubernetes.io/part-of": "llmkube"},
        }
        rule = {
            "apiGroups": [policy["group"]],
            "apiVersions": ["*"],
            "operations": policy["operations"],
            "resources": policy["resources"],
        }
        constraints: dict[str, Any] = {"resourceRules": [rule]}
        if "labelled" in policy:
            constraints["objectSelector"] = {"matchExpressions": [{"key": policy["labelled"], "operator": "Exists"}]}
        if "inside" in policy:
            constraints["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": system_namespace}}
        variables = {**self.variables, **policy.get("variables", {})}
        spec: dict[str, Any] = {
            "failurePolicy": "Fail",
            "matchConstraints": constraints,
            "matchConditions": [dict(self.condition)],
            "variables": [{"name": name, "expression": text} for name, text in variables.items()],
            "validations": [{**check, "reason": "Forbidden"} for check in policy["checks"]],
        }
        binding: dict[str, Any] = {"policyName": metadata["name"], "validationActions": ["Deny"]}
        if "param" in policy:
            spec["paramKind"] = policy["param"]
            binding["paramRef"] = policy["paramRef"]
        head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": metadata}
        return [
            {**head, "kind": "ValidatingAdmissionPolicy", "spec": spec},
            {**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding},
        ]
