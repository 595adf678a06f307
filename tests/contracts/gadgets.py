"""A kind with one of everything that a schema can say, for the script of operations."""

from typing import Any, Final

GADGETS_CRD: Final = "gadgets.check.llmkube.dev"

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_SPEC: Final[dict[str, Any]] = {
    "count": {
        **_NUMBER,
        "x-kubernetes-validations": [
            {
                "rule": "self >= oldSelf",
                "messageExpression": "'count must not ' + (self < 0 ? 'be negative' : 'go down')",
                "reason": "FieldValueForbidden",
            }
        ],
    },
    "anything": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    "either": {"x-kubernetes-int-or-string": True},
    "nothing": {**_TEXT, "nullable": True},
    "nested": {
        "type": "object",
        "default": {"deep": {}},
        "properties": {
            "deep": {"type": "object", "default": {}, "properties": {"x": {**_NUMBER, "default": 7}, "y": _TEXT}},
        },
    },
    "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": _TEXT},
    "row": {"type": "array", "items": _TEXT},
    "map": {"type": "object", "additionalProperties": _NUMBER},
    "when": {**_TEXT, "format": "date-time"},
    "code": {**_TEXT, "pattern": "^[A-Z]+-[0-9]+$", "maxLength": 12, "minLength": 4},
    "ratio": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 10, "multipleOf": 2},
    "choice": {
        "type": "object",
        "properties": {"a": _TEXT, "b": _NUMBER},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "range": {
        "type": "object",
        "properties": {"low": {**_NUMBER, "maximum": 100}, "high": _NUMBER},
        "x-kubernetes-validations": [
            {
                "rule": "!has(self.high) || self.low <= self.high",
                "message": "low must not exceed high",
                "fieldPath": ".low",
            },
            {"rule": "has(self.high)", "message": "high is needed", "reason": "FieldValueRequired"},
        ],
    },
    "items": {
        "type": "array",
        "maxItems": 10,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["key", "zone"],
        "items": {
            "type": "object",
            "required": ["key"],
            "properties": {"key": _TEXT, "zone": {**_TEXT, "default": "near"}, "value": _NUMBER},
            "x-kubernetes-validations": [{"rule": "!has(self.value) || self.value >= 0"}],
        },
    },
    "list": {"type": "array", "items": _NUMBER, "maxItems": 3, "minItems": 1},
    "object": {"type": "object", "additionalProperties": _NUMBER, "maxProperties": 2, "minProperties": 1},
    "host": {**_TEXT, "format": "hostname"},
    "template": {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    },
    "flag": {"type": "boolean", "default": True},
    "mode": {**_TEXT, "enum": ["a", "b"]},
}


def gadget_crd() -> dict[str, Any]:
    """Return the definition: no status subresource, no scale, two columns, a selectable field."""
    spec = {
        "type": "object",
        "properties": _SPEC,
        "x-kubernetes-validations": [
            {"rule": "!has(oldSelf.mode) || has(self.mode)", "message": "mode stays once it is set"}
        ],
    }
    schema = {
        "type": "object",
        "properties": {"spec": spec, "status": {"type": "object", "properties": {"x": _NUMBER}}},
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "selectableFields": [{"jsonPath": ".spec.mode"}],
        "additionalPrinterColumns": [
            {"name": "Mode", "type": "string", "jsonPath": ".spec.mode"},
            {
                "name": "First",
                "type": "string",
                "jsonPath": ".spec.tags[0]",
                "priority": 1,
                "description": "the first tag",
            },
            {"name": "Flag", "type": "boolean", "jsonPath": ".spec.flag"},
            {"name": "Count", "type": "integer", "jsonPath": ".spec.count"},
            {"name": "When", "type": "date", "jsonPath": ".spec.when"},
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": GADGETS_CRD},
        "spec": {
            "group": "check.llmkube.dev",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "categories": ["all"]},
            "versions": [version],
        },
    }
