"""The script: kubectl commands in an order in which each finds what it needs, on a server without other clients.

`kubectl_script.yaml` goes from setting up through reading, changing and refusing to deleting; the namespace is gone at
the end. A row is a command, or a mapping with the attributes of a `Row`, and

* `files`, `edit`, `fill`: what the command reads, as manifests of `manifests`, with texts replaced and a gap filled in;
  `stdin` follows them.
* `only`: the words with which the lines begin that are compared; `view` names a function of this module instead.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from envtest.kubectl_text import Row
from llmkube.k8s.crd.definitions import crds_yaml

SERVED: Final = (
    *("configmaps", "customresourcedefinitions", "endpoints", "endpointslices", "events", "gizmos"),
    *("inferenceservices", "leases", "models", "namespaces", "secrets", "selfsubjectaccessreviews"),
    *("selfsubjectrulesreviews", "serviceaccounts", "services"),
)
"""The kinds that both servers have; a real one has many more."""


def only(text: str, words: Sequence[str]) -> str:
    """Keep the lines that begin with one of the words, after a header in capitals."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.isupper() or re.split(r"[\s.]", line)[0] in words)


def shared_kinds(text: str) -> str:
    """Keep the kinds that both servers have; events.k8s.io is a second name of events, which only a cluster has."""
    kept = only(text, SERVED).splitlines(keepends=True)
    return "".join(line for line in kept if "events.k8s.io" not in line)


def sorted_lines(text: str) -> str:
    """Order the lines: for what Go takes out of a map."""
    return "".join(sorted(text.splitlines(keepends=True)))


def sorted_resources(text: str) -> str:
    """Order the resources of a discovery document: a kube-apiserver lists a group's CRDs as they come out of a map."""
    document, _, rest = text.partition("\n")
    content = json.loads(document)
    content["resources"].sort(key=lambda resource: resource["name"])
    return json.dumps(content) + "\n" + rest


def steady_managers(text: str) -> str:
    """Order managedFields by name: servers order them by the second they were written in, which is a race here."""
    document = yaml.safe_load(text)
    document["metadata"]["managedFields"].sort(
        key=lambda entry: (entry["manager"], entry["operation"], entry.get("subresource", ""))
    )
    return yaml.safe_dump(document)


def without_managers(text: str) -> str:
    """Leave out managedFields where an object is quoted within a message."""
    return re.sub(r'\\"managedFields\\":\[.*?\],(?=\\"name\\")', "", text)


def without_namespaces(text: str) -> str:
    """Leave out the names of namespaces."""
    return re.sub(r"llmkube-\S+", "<ns>", text)


def fields_only(text: str) -> str:
    """Keep the names and types of `explain`: the descriptions of built-in kinds are each server's own words."""
    return "".join(line for line in text.splitlines(keepends=True) if re.match(r"^ *\S+\t<|^[A-Z]+:|^error", line))


VIEWS: Final[Mapping[str, Callable[[str], str]]] = {
    view.__name__: view
    for view in (shared_kinds, sorted_lines, sorted_resources, without_managers, without_namespaces, fields_only)
}
_HERE: Final = Path(__file__).parent


def _manifest(name: str) -> str:
    return crds_yaml() if name == "our_crds" else (_HERE / "manifests" / f"{name}.yaml").read_text(encoding="utf-8")


def _row(given: str | dict[str, Any]) -> Row:
    row: dict[str, Any] = {"command": given} if isinstance(given, str) else dict(given)
    text = "---\n".join(map(_manifest, row.pop("files", "").split()))
    for old, new in row.pop("edit", {}).items():
        text = text.replace(old, new)
    row["stdin"] = (text % row.pop("fill") if "fill" in row else text) + row.pop("stdin", "")
    row["meanwhile"] = tuple(map(tuple, row.pop("meanwhile", ())))
    view = VIEWS[row["view"]] if "view" in row else None
    if "only" in row:
        view = partial(only, words=row.pop("only"))
    if "--show-managed-fields" in row["command"]:
        view = steady_managers
    return Row(**{**row, "view": view})


SCRIPT: Final[Sequence[Row]] = tuple(
    _row(each) for each in yaml.safe_load((_HERE / "kubectl_script.yaml").read_text(encoding="utf-8"))
)
