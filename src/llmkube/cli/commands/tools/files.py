"""Read manifests from files, and check all of them before the first one is applied.

YAML is read as in kubectl (yes and no are booleans), except that dates remain strings and `12:30` is not a base-60
number. A duplicate key in a mapping is an error.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from llmkube.base.errors import UserError
from llmkube.base.package_data import read_text
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.programs.server_side_apply import Manifest

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
_OUR_KINDS: Mapping[tuple[str, str], type[Any]] = {
    (kind.RESOURCE.api_version, kind.RESOURCE.kind): kind for kind in (Model, InferenceService)
}


class ManifestError(UserError):
    """A document is invalid; the message has a line with file, document and field for each problem."""


def load_manifests(names: Sequence[str], read_stdin: Callable[[], str]) -> tuple[Manifest, ...]:
    """Read files, folders (their .yaml, .yml and .json files, sorted by name) and `-`, in the given order.

    Raises:
        ManifestError: A file cannot be read, or a document is not a manifest; the message lists all problems.
    """
    problems: list[str] = []
    manifests: list[Manifest] = []
    for where, text in itertools.chain.from_iterable(_texts(name, read_stdin, problems) for name in names):
        for number, document in _documents(where, text, problems):
            for body in _items_in(document):
                manifest = Manifest(f"{where}, document {number}", body)
                found = list(_problems(body))
                problems += [f"{manifest.where}: {problem}" for problem in found]
                manifests += [] if found else [manifest]
    if problems:
        raise ManifestError("\n".join(problems))
    return tuple(manifests)


def demo_manifests() -> tuple[Manifest, ...]:
    """Return the manifests of the demo."""
    text = read_text("llmkube.cli", "demo.yaml")
    return tuple(Manifest("--demo", body) for body in yaml.load_all(text, Loader=_Loader))


def demo_model() -> tuple[str, str]:
    """Return the name and the source of the demo's Model."""
    body = next(each.body for each in demo_manifests() if each.body["kind"] == "Model")
    return body["metadata"]["name"], body["spec"]["source"]


def _texts(name: str, read_stdin: Callable[[], str], problems: list[str]) -> Iterator[tuple[str, str]]:
    try:
        if name == "-":
            name = "standard input"
            yield name, read_stdin()
            return
        path = Path(name)
        if not path.is_dir():
            yield name, path.read_text(encoding="utf-8")
            return
        files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
        if not files:
            problems.append(f"{name}: has no .yaml, .yml or .json file; specify a file or another folder")
        for each in files:
            yield str(each), each.read_text(encoding="utf-8")
    except OSError as exc:
        fix = "; a URL is not fetched: download it first" if "://" in name else ""
        problems.append(f"{name}: cannot be read ({exc.strerror}){fix}")
    except UnicodeDecodeError:
        problems.append(f"{name}: is not UTF-8 text")


def _documents(where: str, text: str, problems: list[str]) -> Iterator[tuple[int, Any]]:
    documents = yaml.load_all(text, Loader=_Loader)
    for number in itertools.count(1):
        try:
            document = next(documents)
        except StopIteration:
            return
        except yaml.MarkedYAMLError as exc:
            line = f", line {exc.problem_mark.line + 1}" if exc.problem_mark else ""
            problems.append(f"{where}, document {number}{line}: {exc.problem or exc.context}")
            return
        except (yaml.YAMLError, ValueError, RecursionError) as exc:
            problems.append(f"{where}, document {number}: is not YAML ({type(exc).__name__})")
            return
        if document is not None:  # a document may be empty, or have only comments
            yield number, document


def _items_in(document: Any) -> Iterator[Any]:
    """Yield the items of a `kind: List`, or the document itself."""
    if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        yield from document["items"]
    else:
        yield document


def _problems(body: Any) -> Iterator[str]:
    if not isinstance(body, dict):
        yield f"is {_kind_of(body)}, not an object; start with apiVersion, kind and metadata"
        return
    metadata = body.get("metadata")
    wanted = [("apiVersion", body.get("apiVersion")), ("kind", body.get("kind"))]
    if not isinstance(metadata, dict):
        yield f"metadata: is {_kind_of(metadata)}; write a mapping with a name"
    else:
        wanted.append(("metadata.name", metadata.get("name")))
        if "namespace" in metadata:
            wanted.append(("metadata.namespace", metadata["namespace"]))
    is_invalid = False
    for field, value in wanted:
        if not isinstance(value, str) or not value:
            is_invalid = True
            yield f"{field}: is {_kind_of(value)}; write a string"
    kind = None if is_invalid else _OUR_KINDS.get((body["apiVersion"], body["kind"]))
    if kind is not None and isinstance(metadata, dict):
        try:
            decode(kind, body)
        except UserError as exc:
            yield str(exc)


def _kind_of(value: Any) -> str:
    if value is None:
        return "missing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f'"{value}"' if isinstance(value, str) and value else repr(value)


class _Loader(yaml.SafeLoader):
    """The safe loader, with the changes that the module docstring describes."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a string", key.start_mark)
            if key.tag == _MERGE:
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f'duplicate key "{key.value}"', key.start_mark)
            seen.add(key.value)
            key.tag = "tag:yaml.org,2002:str"  # as in JSON: a label may have the name `on` or `1`
        return super().construct_mapping(node, deep=deep)


_MERGE, _INT, _FLOAT, _TIME = (f"tag:yaml.org,2002:{name}" for name in ("merge", "int", "float", "timestamp"))
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in {_INT, _FLOAT, _TIME}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT, re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"), list("-+.0123456789")
)
