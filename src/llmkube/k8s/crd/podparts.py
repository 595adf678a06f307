"""The parts of a pod that our kinds carry as free-form maps are spelled out in the CRDs, as Kubernetes types them.

No class decodes them: renderers pass them on to the pod as they came, and a cache of ten thousand services pays nothing
for the three hundred fields in `podparts.json`. The API server knows them all, so that `kubectl explain` shows them and
a misspelled `tcpSocket.prot` is refused when it is applied, not when a pod is made.

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
    """Return the structural schema of each part, fresh on each call: YAML would write a shared node as a reference."""
    parts: dict[str, dict[str, Any]] = json_text.loads(_text())
    return parts


def part_schema(name: str) -> dict[str, Any]:
    """Return the structural schema of a part of a pod.

    Raises:
        KeyError: There is no such part.
    """
    return pod_parts()[name]
