"""A schema is parsed once into a tree that defaulting, pruning, validation and merging all walk.

Its JSON form is OpenAPI v3 as in CustomResourceDefinitions, with Kubernetes' `x-kubernetes-*` extensions; built-in
kinds use the same form (`builtin_types`), so there is one code path for both.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self

import attrs

from llmkube.apiserver.schema.builtin_types import OBJECT_META
from llmkube.apiserver.values.json_values import compact, is_list, is_object
from llmkube.base.errors import UserError

JsonObject = dict[str, Any]
Relation = Literal["atomic", "set", "map"]

_NOTHING: Final[Mapping[str, "Schema"]] = {}


class RuleError(UserError):
    """The text is not a CEL expression that this server can run."""


Rule = Mapping[str, Any]
"""One entry of `x-kubernetes-validations`."""


@attrs.frozen(eq=False)
class Schema:
    """The values that are allowed, how two of them merge, and the default.

    `raw` is the JSON that the schema was parsed from: discovery publishes it, and validation reads the plain bounds
    from it.
    """

    raw: Mapping[str, Any]
    type: str = ""
    nullable: bool = False
    properties: Mapping[str, "Schema"] = _NOTHING
    additional: "Schema | None" = None  # additionalProperties as a schema
    items: "Schema | None" = None
    preserve_unknown: bool = False  # x-kubernetes-preserve-unknown-fields, or additionalProperties: true
    embedded: bool = False  # x-kubernetes-embedded-resource: an object with apiVersion, kind and metadata of its own
    int_or_string: bool = False
    list_type: Relation = "atomic"
    list_map_keys: tuple[str, ...] = ()
    map_atomic: bool = False
    rules: tuple[Rule, ...] = ()
    has_rules: bool = False  # here or anywhere below; subtrees without rules are skipped
    all_of: tuple["Schema", ...] = ()
    any_of: tuple["Schema", ...] = ()
    one_of: tuple["Schema", ...] = ()
    not_: "Schema | None" = None
    patch_merge_key: str = ""
    patch_strategies: frozenset[str] = frozenset()  # of "merge", "replace", "retainKeys"
    default_size: int = 0  # number of values in the default
    defaulted: Mapping[str, "Schema"] = _NOTHING  # the properties that have a default

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Parse a schema's JSON form; `crd_rules.check` has refused malformed ones before."""
        additional = raw.get("additionalProperties")
        items = raw.get("items")
        strategies = str(raw.get("x-kubernetes-patch-strategy", ""))
        properties = raw.get("properties") or {}
        embedded = bool(raw.get("x-kubernetes-embedded-resource", False))
        if embedded:  # it has apiVersion, kind and metadata, declared or not
            text = {"type": "string"}
            properties = {"apiVersion": text, "kind": text, "metadata": OBJECT_META, **properties}
        fields = {name: cls.parse(sub) for name, sub in properties.items()}
        values = cls.parse(additional) if is_object(additional) else None
        item = cls.parse(items) if is_object(items) else None
        rules = tuple(raw.get("x-kubernetes-validations") or ())
        return cls(
            raw=raw,
            type=raw.get("type", ""),
            nullable=bool(raw.get("nullable", False)),
            properties=fields,
            additional=values,
            items=item,
            preserve_unknown=bool(raw.get("x-kubernetes-preserve-unknown-fields", False)) or additional is True,
            embedded=embedded,
            int_or_string=bool(raw.get("x-kubernetes-int-or-string", False)),
            list_type=raw.get("x-kubernetes-list-type", "atomic"),
            list_map_keys=tuple(raw.get("x-kubernetes-list-map-keys") or ()),
            map_atomic=raw.get("x-kubernetes-map-type") == "atomic",
            rules=rules,
            has_rules=bool(rules) or any(inner.has_rules for inner in (*fields.values(), values, item) if inner),
            all_of=tuple(cls.parse(sub) for sub in raw.get("allOf") or ()),
            any_of=tuple(cls.parse(sub) for sub in raw.get("anyOf") or ()),
            one_of=tuple(cls.parse(sub) for sub in raw.get("oneOf") or ()),
            not_=cls.parse(raw["not"]) if isinstance(raw.get("not"), Mapping) else None,
            patch_merge_key=raw.get("x-kubernetes-patch-merge-key", ""),
            patch_strategies=frozenset(strategies.split(",")) if strategies else frozenset(),
            default_size=_size(raw["default"]) if "default" in raw else 0,
            defaulted={name: field for name, field in fields.items() if field.has_default},
        )

    @property
    def has_default(self) -> bool:
        """Whether the value is filled in when it is missing."""
        return "default" in self.raw

    def counterparts(self, items: Sequence[Any], old: Any) -> list[Any]:
        """Return the old value of each item of a list: matched by key in a keyed list, else unknown (None)."""
        if self.list_type != "map" or not is_list(old):
            return [None] * len(items)
        known = {self._key(item): item for item in reversed(old) if is_object(item)}
        return [known.get(self._key(item)) if is_object(item) else None for item in items]

    def _key(self, item: Mapping[str, Any]) -> str:
        return compact([item.get(name) for name in self.list_map_keys])

    def child(self, name: str) -> "Schema | None":
        """Return the schema of an object's field or a map's value; None when the schema does not declare it."""
        return self.properties.get(name, self.additional)


def _size(value: Any) -> int:
    """Return the number of values in a value, including itself."""
    below = value.values() if is_object(value) else value if is_list(value) else ()
    return 1 + sum(map(_size, below))


ANYTHING: Final = Schema(raw={"x-kubernetes-preserve-unknown-fields": True}, preserve_unknown=True)
"""A schema without constraints: every value is allowed, lists are atomic, maps merge key by key."""
