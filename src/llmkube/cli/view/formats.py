"""Objects as JSON, YAML or names, as `kubectl get -o` prints them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmkube.k8s.codec import encode
from llmkube.k8s.resource import Object

FORMATS: Final = ("wide", "json", "yaml", "name")


def as_data(obj: Object) -> dict[str, Any]:
    """Return an object as JSON data, without managed fields."""
    data = encode(obj)
    metadata = {name: value for name, value in data["metadata"].items() if name != "managedFields"}
    return data | {"metadata": metadata}


def name_of(obj: Object) -> str:
    """Return the name in the form of `kubectl get -o name`: `inferenceservice.inference.llmkube.dev/demo`."""
    return f"{obj.RESOURCE.singular}.{obj.RESOURCE.group}/{obj.metadata.name}"


def dump(data: Mapping[str, Any] | Sequence[Any], form: str) -> str:
    """Return JSON or YAML text, without a final newline."""
    if form == "json":
        return json.dumps(data, indent=2, ensure_ascii=False)
    import yaml  # noqa: PLC0415 - tables need no YAML

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120).rstrip("\n")


def render(obj: Object, form: str) -> str:
    """Return one object as JSON, YAML or its name."""
    return name_of(obj) if form == "name" else dump(as_data(obj), form)


def render_next(obj: Object, form: str) -> str:
    """Return one object of a stream; in YAML, as a separate document."""
    return f"---\n{render(obj, form)}" if form == "yaml" else render(obj, form)


def render_all(objects: Sequence[Object], form: str) -> str:
    """Return several objects as a List in JSON or YAML, or as one name per line."""
    if form == "name":
        return "\n".join(map(name_of, objects))
    return dump({"apiVersion": "v1", "kind": "List", "items": [as_data(each) for each in objects]}, form)
