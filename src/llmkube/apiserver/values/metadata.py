"""Validation of metadata, the same for every kind.

Facts: `k8s.io/apimachinery/pkg/api/validation` (ObjectMeta on create and on update).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from llmkube.apiserver.values.field_errors import (
    FieldError,
    Verbatim,
    at,
    forbidden,
    immutable,
    invalid,
    required,
    too_long,
)
from llmkube.apiserver.values.json_values import same
from llmkube.k8s.wire import name_rules

MAX_ANNOTATION_BYTES: Final = 256 * 1024
"""Limit for all keys and values of an object's annotations together."""

_CANNOT_OWN: Final = frozenset({("v1", "Event"), ("events.k8s.io/v1", "Event")})
"""Kinds that cannot own objects: they are gone before the garbage collector could act."""

_IMMUTABLE: Final = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def check(obj: Mapping[str, Any], old: Mapping[str, Any] | None, name_rule: Callable[[str], str]) -> list[FieldError]:
    """Return the errors in the metadata of an object whose types are valid; `old` is the stored one, on an update."""
    metadata = obj.get("metadata") or {}
    before = {} if old is None else old.get("metadata") or {}
    errors = list(_check_name(metadata, name_rule))
    if metadata.get("labels") != before.get("labels"):
        errors += check_labels(metadata.get("labels"), "metadata.labels")
    if metadata.get("annotations") != before.get("annotations"):
        errors += _check_annotations(metadata)
    errors += _check_owners(metadata)
    errors += _check_finalizers(metadata)
    if old is not None:
        errors += 2 * list(_check_change(metadata, before))  # kube-apiserver checks it twice
    return errors


def _check_name(metadata: Mapping[str, Any], name_rule: Callable[[str], str]) -> Iterator[FieldError]:
    prefix = metadata.get("generateName") or ""
    if prefix and (problem := name_rule(prefix[:-1] + "a" if prefix.endswith(("-", ".")) else prefix)):
        yield invalid("metadata.generateName", prefix, problem)
    name = metadata.get("name") or ""
    if not name:
        if not prefix:
            yield required("metadata.name", "name or generateName is required")
    elif problem := name_rule(name):
        yield invalid("metadata.name", name, problem)
    generation = metadata.get("generation") or 0
    if generation < 0:
        yield invalid("metadata.generation", generation, "must be greater than or equal to 0")


def check_labels(labels: Any, path: str) -> Iterator[FieldError]:
    """Validate a map of labels."""
    for name, value in (labels or {}).items():
        for problem in name_rules.label_key(name):
            yield invalid(path, name, problem)
        if isinstance(value, str) and (problem := name_rules.label_value(value)):
            yield invalid(path, value, problem)


def annotations_size(annotations: Mapping[str, Any]) -> int:
    """Return the bytes of all keys and values together."""
    return sum(len(name.encode()) + len(str(value).encode()) for name, value in annotations.items())


def _check_annotations(metadata: Mapping[str, Any]) -> Iterator[FieldError]:
    annotations = metadata.get("annotations") or {}
    for name in annotations:
        for problem in name_rules.qualified_all(name.lower()):  # upper case is allowed in annotations' prefixes
            yield invalid("metadata.annotations", name, problem)
    if annotations_size(annotations) > MAX_ANNOTATION_BYTES:
        yield too_long("metadata.annotations", MAX_ANNOTATION_BYTES)


def _check_owners(metadata: Mapping[str, Any]) -> Iterator[FieldError]:
    path = "metadata.ownerReferences"
    controllers = []
    for owner in metadata.get("ownerReferences") or ():
        version = owner.get("apiVersion") or ""
        if not version or version.count("/") > 1:
            yield invalid(at(path, "apiVersion"), version, "version must not be empty")
        for name in ("kind", "name", "uid"):
            if not owner.get(name):
                yield invalid(at(path, name), "", "must not be empty")
        if (version, owner.get("kind")) in _CANNOT_OWN:
            named = f"{'' if '/' in version else '/'}{version}, Kind={owner['kind']}"
            yield invalid(path, owner, f"{named} is disallowed from being an owner")
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind', '')}/{owner.get('name', '')}")
    if len(controllers) > 1:
        found = f'Found "true" in references for {controllers[0]} and {controllers[1]}'
        why = f"Only one reference can have Controller set to true. {found}"
        yield invalid(path, metadata["ownerReferences"], why)


def _check_finalizers(metadata: Mapping[str, Any]) -> Iterator[FieldError]:
    path, finalizers = "metadata.finalizers", metadata.get("finalizers") or ()
    for finalizer in finalizers:
        for problem in name_rules.qualified_all(finalizer):
            yield invalid(path, finalizer, problem)
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        yield invalid(path, list(finalizers), "finalizer orphan and foregroundDeletion cannot be both set")


def _check_change(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    if old.get("deletionTimestamp"):
        before = old.get("finalizers") or ()
        added = [finalizer for finalizer in new.get("finalizers") or () if finalizer not in before]
        if added:
            listed = ", ".join(f'"{finalizer}"' for finalizer in added)
            yield forbidden(
                "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted,"
                f" found new finalizers []string{{{listed}}}",
            )
    if not new.get("resourceVersion"):
        yield invalid("metadata.resourceVersion", Verbatim("0"), "must be specified for an update")
    if (new.get("generation") or 0) < (old.get("generation") or 0):
        yield invalid("metadata.generation", new.get("generation") or 0, "must not be decremented")
    for name in _IMMUTABLE:
        if not same(new.get(name), old.get(name)):
            yield immutable(at("metadata", name), new.get(name))


def stored_form(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as Kubernetes' own structure writes it: empty fields omitted, null labels empty."""
    kept = {name: value for name, value in metadata.items() if value not in _EMPTY and name != "selfLink"}
    for name in ("labels", "annotations"):
        if None in kept.get(name, {}).values():
            kept[name] = {key: "" if value is None else value for key, value in kept[name].items()}
    return kept


def finalizer_warnings(metadata: Mapping[str, Any]) -> list[str]:
    """Return the warnings about finalizers without a domain."""
    known = {"orphan", "foregroundDeletion"}
    return [
        f'metadata.finalizers: "{finalizer}": prefer a domain-qualified finalizer name to avoid accidental conflicts'
        " with other finalizer writers"
        for finalizer in metadata.get("finalizers") or ()
        if "/" not in finalizer and finalizer not in known and not name_rules.qualified(finalizer)
    ]


_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
