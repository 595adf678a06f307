"""The schemas of the parts of a pod that our kinds hold as free-form maps.

No class decodes these parts: renderers pass them to the pod unchanged, and a cache of ten thousand services has no cost
for the three hundred fields in `podparts.json`. The CRDs have all of them, so `kubectl explain` shows them and a
misspelled `tcpSocket.prot` is refused when the object is applied, not when a pod is created.

Facts: the Kubernetes API, v1.36, types of `k8s.io/api/core/v1`, as structural schemas by their Kubernetes names.
"""

import functools
from importlib import resources
from typing import Any

from llmkube.base import json_text


@functools.cache
def _text() -> bytes:
    return resources.files(__package__).joinpath("podparts.json").read_bytes()


def pod_parts() -> dict[str, dict[str, Any]]:
    """Return the structural schema of each part, new on each call: YAML would write a shared node as an alias."""
    parts: dict[str, dict[str, Any]] = json_text.loads(_text())
    return parts


def part_schema(name: str) -> dict[str, Any]:
    """Return the structural schema of a part of a pod.

    Raises:
        KeyError: There is no such part.
    """
    return pod_parts()[name]
