"""A field set is a tree of paths, in the form of `fieldsV1`: the fields of an object that one manager owns.

A path element is the text that Kubernetes writes for it: `f:spec` (a field or a map's key), `k:{"port":80}` (an item of
a keyed list), `v:"x"` (an item of a set), `i:0` (an index). Texts are canonical, so equal elements are equal strings.

Facts: `sigs.k8s.io/structured-merge-diff`, packages `fieldpath` and `value`.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Self

import attrs

from llmkube.apiserver.values import json_text
from llmkube.apiserver.values.json_values import compact, is_object
from llmkube.base.errors import UserError

Path = tuple[str, ...]

_EMPTY: Final[Mapping[str, "FieldSet"]] = {}


class FieldSetError(UserError):
    """The text is not a field set."""


def field(name: str) -> str:
    """Return the element of an object's field."""
    return f"f:{name}"


def key(keys: Mapping[str, Any]) -> str:
    """Return the element of a keyed list's item."""
    return f"k:{compact(keys)}"


def value(item: Any) -> str:
    """Return the element of a set's item."""
    return f"v:{compact(item)}"


@attrs.frozen(slots=False)  # cached properties keep their values in the instance's dict
class FieldSet:
    """An immutable set of paths.

    `members` are the elements that are in the set themselves; `children` have what is in the set below an element. An
    element may be in either or in both; a child is never empty.
    """

    members: frozenset[str] = frozenset()
    children: Mapping[str, "FieldSet"] = _EMPTY

    def __bool__(self) -> bool:
        return bool(self.members or self.children)

    def __contains__(self, path: Path) -> bool:
        *above, last = path
        below = self
        for element in above:
            below = below.below(element)
        return last in below.members

    def __iter__(self) -> Iterator[Path]:
        """Yield every path: at each level the members first, then the paths below."""
        for element in self._ordered():
            if element in self.members:
                yield (element,)
        for element in self._ordered():
            for path in self.below(element):
                yield (element, *path)

    def below(self, element: str) -> "FieldSet":
        """Return the part of the set below an element."""
        return self.children.get(element, NOTHING)

    def union(self, other: "FieldSet") -> "FieldSet":
        """Return the paths of either set."""
        if not self or not other:
            return self or other
        names = self.children.keys() | other.children.keys()
        return _tree(self.members | other.members, {name: self.below(name).union(other.below(name)) for name in names})

    def intersection(self, other: "FieldSet") -> "FieldSet":
        """Return the paths of both sets."""
        if not self or not other:
            return NOTHING
        names = self.children.keys() & other.children.keys()
        return _tree(
            self.members & other.members, {name: self.below(name).intersection(other.below(name)) for name in names}
        )

    def difference(self, other: "FieldSet") -> "FieldSet":
        """Return the paths of this set that are not in the other."""
        if not self or not other:
            return self
        return _tree(
            self.members - other.members,
            {name: child.difference(other.below(name)) for name, child in self.children.items()},
        )

    def without_below(self, other: "FieldSet") -> "FieldSet":
        """Return the paths of this set that are neither in the other nor below one of the other's paths."""
        if not self or not other:
            return self
        return _tree(
            self.members - other.members,
            {
                name: child.without_below(other.below(name))
                for name, child in self.children.items()
                if name not in other.members
            },
        )

    @cached_property
    def elements(self) -> frozenset[str]:
        """All elements that are in the set or have paths below them."""
        return self.members | self.children.keys()

    @classmethod
    def of(cls, paths: Iterable[Path]) -> Self:
        """Build a set from paths."""
        members = set()
        below: dict[str, list[Path]] = {}
        for first, *rest in paths:
            if rest:
                below.setdefault(first, []).append(tuple(rest))
            else:
                members.add(first)
        return cls(frozenset(members), {name: cls.of(rests) for name, rests in below.items()})

    @classmethod
    def parse(cls, raw: Any) -> Self:
        """Parse the JSON form.

        Raises:
            FieldSetError: It is malformed: an element without a known prefix, or a value that is not an object.
        """
        if not is_object(raw):
            raise FieldSetError(f"expected an object in a field set, got {raw!r}")
        members = set()
        children = {}
        for text, inner in raw.items():
            if text == ".":
                continue  # the caller has made the element above a member
            element = _canonical(text)
            child = cls.parse(inner)
            if not inner or "." in inner:
                members.add(element)
            if child:
                children[element] = child
        return cls(frozenset(members), children)

    @cached_property
    def json(self) -> Mapping[str, Any]:
        """The JSON form, in Kubernetes' order: fields, keyed items, values, indexes; do not edit it."""
        return self._build_json()

    def _build_json(self) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for element in self._ordered():
            inner = self.below(element)._build_json()  # noqa: SLF001 (its own class)
            written[element] = {".": {}, **inner} if inner and element in self.members else inner
        return written

    def _ordered(self) -> list[str]:
        texts = sorted(self.elements)  # fields, indexes, keys, values; sorting pairs would take five times as long
        indexes = [text for text in texts if text[0] == "i"]
        return [*(text for text in texts if text[0] != "i"), *indexes] if indexes else texts


NOTHING: Final = FieldSet()
"""The empty set."""


def dotted(path: Path) -> str:
    """Return a path as conflicts show it: `.spec.ports[port=80,protocol="TCP"].name`."""
    return "".join(map(_dotted_element, path))


def _dotted_element(element: str) -> str:
    kind, text = element[0], element[2:]
    if kind == "f":
        return f".{text}"
    if kind == "k":
        keys = json_text.read(text)
        return "[" + ",".join(f"{name}={compact(item)}" for name, item in keys.items()) + "]"
    return f"[={text}]" if kind == "v" else f"[{text}]"


def _tree(members: frozenset[str], children: Mapping[str, FieldSet]) -> FieldSet:
    return FieldSet(members, {name: child for name, child in children.items() if child})


def _canonical(text: str) -> str:
    prefix, body = text[:2], text[2:]
    if prefix == "f:":
        return text
    try:
        content = json_text.read(body)
    except ValueError as error:
        raise FieldSetError(f"expected JSON after {prefix!r} in the path element {text!r}") from error
    if prefix == "k:" and isinstance(content, dict):
        return key(content)
    if prefix == "v:":
        return value(content)
    if prefix == "i:" and isinstance(content, int):
        return f"i:{content}"
    raise FieldSetError(f"missing key type in the path element {text!r}")
