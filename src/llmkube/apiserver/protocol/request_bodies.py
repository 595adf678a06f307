"""Request bodies: JSON, YAML or protobuf, parsed and checked before anything uses them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import attrs
import yaml

from llmkube.apiserver.protocol import protobuf_bodies
from llmkube.apiserver.schema import builtin_types
from llmkube.apiserver.schema.defaults import MAX_COMPLAINTS
from llmkube.apiserver.schema.patterns import FORMATS
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.values import json_text
from llmkube.apiserver.values.api_errors import bad_request, too_large
from llmkube.apiserver.values.field_errors import at, at_item
from llmkube.apiserver.values.json_text import MAX_DEPTH, MAX_VALUES, JsonBoundError, TooDeepError, TooManyValuesError
from llmkube.apiserver.values.json_values import has_type, is_integer, is_object

MAX_BODY_BYTES: Final = 3 * 1024 * 1024
"""The largest body accepted, as in kube-apiserver (etcd's limit of 1.5 MiB applies to what is stored)."""

MAX_YAML_BYTES: Final = 256 * 1024
"""The largest body in YAML, which takes a thousand times longer to parse than JSON; kubectl sends JSON."""


class DecodeError(Exception):
    """A value does not have the type that its field requires; the caller, who knows the kind, responds to it."""


def check_size(body: bytes) -> None:
    """Refuse a body over the limit.

    Raises:
        RequestRefusedError: 413.
    """
    if len(body) > MAX_BODY_BYTES:
        raise too_large(f"limit is {MAX_BODY_BYTES}")


def parse(body: bytes, media: str) -> tuple[Any, list[str]]:
    """Return the parsed body and the errors of strict decoding: duplicate fields.

    Raises:
        RequestRefusedError: 400, not JSON (or YAML), or nested too deeply; 413, too large or too many values.
    """
    check_size(body)
    try:
        if media == protobuf_bodies.MEDIA_TYPE:
            content = protobuf_bodies.decode(body)
            json_text.measure(json_text.write(content))
            return content, []
        return _yaml(body) if media.endswith("yaml") else _json(body)
    except TooManyValuesError as exc:
        raise too_large(str(exc)) from exc
    except (ValueError, TypeError, yaml.YAMLError) as exc:
        raise bad_request(f"couldn't get version/kind; json parse error: {exc}") from exc


def check_bounds(content: Any) -> None:
    """Refuse an object that a patch has made if it would be refused as a body.

    Raises:
        RequestRefusedError: 400, nested too deeply; 413, too large or too many values.
    """
    try:
        text = json_text.write(content)
        check_size(text)
        json_text.measure(text)
    except TooManyValuesError as exc:
        raise too_large(str(exc)) from exc
    except (TooDeepError, TypeError) as exc:  # TypeError: too deep for the writer
        raise bad_request(f"exceeded max depth: limit is {MAX_DEPTH} levels") from exc


def parse_object(body: bytes, media: str) -> tuple[dict[str, Any], list[str]]:
    """Return the body as an object whose metadata is an object too.

    Raises:
        RequestRefusedError: 400, it is something else.
        DecodeError: Its metadata is of the wrong type.
    """
    content, duplicates = parse(body, media)
    check_envelope(content)
    check_shape(content)
    return content, duplicates


def check_envelope(content: Any) -> None:
    """Refuse a body that is not an object, or whose apiVersion or kind is not a string.

    Raises:
        RequestRefusedError: 400.
    """
    if not isinstance(content, dict):
        raise bad_request("couldn't get version/kind; json parse error: the body is not an object")
    for name in ("apiVersion", "kind"):
        if not isinstance(content.get(name), str | None):
            raise bad_request(f"couldn't get version/kind; json parse error: {name} is not a string")


def check_shape(content: Mapping[str, Any]) -> None:
    """Refuse metadata that is invalid for every kind, so that later code can rely on its types.

    Raises:
        DecodeError: A value of the wrong type.
    """
    metadata = content.get("metadata")
    if metadata is None:
        return
    if not is_object(metadata):
        raise cannot_unmarshal("metadata", "object")
    check_types({name: metadata[name] for name in metadata}, OBJECT_META, "metadata")


def check_types(value: Any, schema: Schema, path: str) -> None:
    """Refuse a value whose JSON types are not those of a built-in kind's schema; unknown fields and nulls pass.

    kube-apiserver decodes built-in kinds into structures before it validates them; this has the same effect.

    Raises:
        DecodeError: The message names the field.
    """
    if value is None:
        return
    fits = isinstance(value, str) or is_integer(value) if schema.int_or_string else has_type(value, schema.type)
    if not fits:
        raise cannot_unmarshal(path, schema.type or "integer or string")
    _check_format(value, schema.raw.get("format", ""), path)
    if is_object(value):
        for name, item in value.items():
            inner = schema.child(name)
            if inner is not None:
                check_types(item, inner, at(path, name))
    elif isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            if item is None and schema.items.type in {"object", "string"}:
                raise cannot_unmarshal(at_item(path, index), schema.items.type)
            check_types(item, schema.items, at_item(path, index))


def _check_format(value: Any, format_name: str, path: str) -> None:
    if format_name == "date-time" and value and not FORMATS[format_name](value):
        raise DecodeError(f'parsing time "{value}" in {path}: not as in RFC 3339')
    if format_name == "byte" and not FORMATS[format_name](value):
        raise DecodeError(f"illegal base64 data in {path}")


def cannot_unmarshal(path: str, wanted: str) -> DecodeError:
    """Return the error for a field with the wrong JSON type."""
    return DecodeError(f"json: cannot unmarshal value into Go struct field .{path} of type {wanted}")


OBJECT_META: Final = Schema.parse(builtin_types.OBJECT_META)


def _json(body: bytes) -> tuple[Any, list[str]]:
    content = json_text.read(body)
    if json_text.measure(body).fields == json_text.measure(json_text.write(content)).fields:
        return content, []
    return content, list(islice(_duplicates(_pairs(body), ""), MAX_COMPLAINTS))


@attrs.frozen
class _Pairs:
    """An object with all fields that were sent, duplicates included."""

    pairs: list[tuple[str, Any]]


def _pairs(body: bytes) -> Any:
    """Parse JSON again, with all the fields of its objects; hardly any body needs it."""
    return json.loads(json_text.repair(body), object_pairs_hook=_Pairs, parse_int=str, parse_float=str)


def _duplicates(value: Any, path: str) -> Iterator[str]:
    """Yield an error for each duplicate field; only its last value is searched for more."""
    if isinstance(value, _Pairs):
        counts = Counter(name for name, _ in value.pairs)
        for name, count in counts.items():
            if count > 1:
                yield f'duplicate field "{at(path, name)}"'
        for name, item in dict(value.pairs).items():
            yield from _duplicates(item, at(path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _duplicates(item, at_item(path, index))


def _yaml(body: bytes) -> tuple[Any, list[str]]:
    try:  # kubectl labels an apply patch as YAML but sends JSON, which is quick to parse
        return _json(body)
    except JsonBoundError:
        raise
    except ValueError:
        pass
    if len(body) > MAX_YAML_BYTES:
        raise too_large(f"limit is {MAX_YAML_BYTES} for YAML, which takes long to read; send JSON")
    content = yaml.load(body, Loader=_Loader)  # noqa: S506  # _Loader is a stricter SafeLoader
    # Convert to JSON, so that what only YAML has (numbers as keys, sets) is refused or converted
    return json_text.read(json.dumps(content, allow_nan=False)), []


class _Loader(yaml.SafeLoader):
    """Reads YAML as Kubernetes does: a date is a text. Aliases are refused: a few lines of them exhaust memory."""

    depth = 0
    values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not accepted")
        self.depth += 1
        self.values += 1
        if self.depth > MAX_DEPTH:
            raise TooDeepError(f"exceeded max depth: limit is {MAX_DEPTH} levels")
        if self.values > MAX_VALUES:
            raise TooManyValuesError(f"limit is {MAX_VALUES} values, and there are more")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_flag(text: str) -> bool | None:
    """Parse a boolean query parameter; None when it is not given. All values except 0 and false are true."""
    return None if not text else text.lower() not in {"0", "false"}
