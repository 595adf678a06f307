"""The JSONPath of printer columns and `kubectl`: the subset that covers every path that a CRD may contain.

Steps: `.name` (dots escaped by a backslash), `['name']`, `[n]`, `[*]`, `.*`, `..name`, and filters
`[?(@.type=="Ready")]` with `== != < <= > >=` against a string, number or boolean. Facts: Kubernetes "JSONPath Support".
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

Step = Callable[[Any], Iterator[Any]]

_TOKEN: Final = re.compile(
    r"""\.\.(?P<deep>(?:[^.\[\\]|\\.)+)
      | \.?\[\?\(\s*@(?P<filter>(?:[^=!<>()\s])*)\s*
            (?:(?P<op>==|!=|<=|>=|<|>)\s*(?P<literal>"[^"]*"|'[^']*'|[^()\s]+))?\s*\)\]
      | \.?\[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]
      | \.?\[(?P<index>-?\d+|\*)\]
      | \.(?P<star>\*)
      | \.?(?P<name>(?:[^.\[\\]|\\.)+)""",
    re.VERBOSE,
)


def find(path: str, document: Any) -> list[Any]:
    """Return every value that the path reaches, in document order; empty when a step matches nothing.

    Raises:
        ValueError: The path is malformed.
    """
    values = [document]
    for step in _compile(path):
        values = [found for value in values for found in step(value)]
    return values


@lru_cache(maxsize=1024)  # the same columns are evaluated for each object
def _compile(path: str) -> tuple[Step, ...]:
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    steps: list[Step] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            if text[position:] == ".":
                break  # "." is the document itself
            raise ValueError(f"invalid JSONPath {path!r} at {text[position:]!r}")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> Step:
    if match["deep"]:
        return _deep(_unescape(match["deep"]))
    if match["star"] or match["index"] == "*":
        return _children
    if match["index"]:
        return _item(int(match["index"]))
    if match["filter"] is not None:
        return _filter(match["filter"], match["op"], match["literal"])
    return _member(match["quoted"] if match["quoted"] is not None else _unescape(match["name"]))


def _unescape(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


def _member(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, Mapping) and name in value:
            yield value[name]

    return step


def _item(index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]

    return step


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _deep(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, Mapping) and name in value:
            yield value[name]
        for child in _children(value):
            yield from step(child)

    return step


def _filter(path: str, operator: str | None, literal: str | None) -> Step:
    inner = _compile(path)

    def step(value: Any) -> Iterator[Any]:
        for child in _children(value):
            found = [child]
            for part in inner:
                found = [deeper for item in found for deeper in part(item)]
            if found and (operator is None or literal is None or _holds(found[0], operator, literal)):
                yield child

    return step


def _holds(value: Any, operator: str, literal: str) -> bool:
    try:
        wanted: Any = literal[1:-1] if literal[0] in "\"'" else json.loads(literal)
    except ValueError:  # a word without quotes
        wanted = literal
    if operator == "==":
        return bool(value == wanted)
    if operator == "!=":
        return bool(value != wanted)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(wanted, int | float):
        return False
    return {"<": value < wanted, "<=": value <= wanted, ">": value > wanted, ">=": value >= wanted}[operator]
