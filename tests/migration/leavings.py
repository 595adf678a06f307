"""Objects that the agent and the controller of the Go implementation leave on the day of a migration.

Written from observation (version 0.9.19): names, labels and fields, nothing else.
"""

import hashlib
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

MARK: Final = "llmkube.ai"
SITE: Final = "inference.llmkube.dev"


def _filled(file: str, **values: object) -> list[dict[str, Any]]:
    """Return the objects in a file, with its gaps filled."""
    text = (Path(__file__).parent / "data" / f"{file}.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(Template(text).substitute(values)))


def agents_objects(name: str, *, address: str, port: int, namespace: str = "default") -> list[dict[str, Any]]:
    """Return the objects that their agent leaves for a service it served: a Service, a slice, and old Endpoints."""
    return _filled("agents_objects", name=name, address=address, port=port, namespace=namespace)


def cache_key(source: str) -> str:
    """Return the folder of a source's weights below `/models`."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def controllers_deployment(
    name: str, model: str, source: str, *, owner: str, namespace: str = "ml", file: str = "model.gguf"
) -> dict[str, Any]:
    """Return the Deployment that their controller has made of a llama.cpp service with the shared cache.

    Args:
        name: The InferenceService.
        model: The Model.
        source: The Model's source.
        owner: The InferenceService's uid.
        namespace: Its namespace.
        file: File name of the weights in their folder.
    """
    own = {"name": name, "model": model, "source": source, "owner": owner, "namespace": namespace}
    return _filled("controllers_deployment", **own, weights=file, key=cache_key(source))[0]


def controllers_service(name: str, *, owner: str, namespace: str = "ml") -> dict[str, Any]:
    """Return the Service that their controller has made of a service in pods."""
    return _filled("controllers_service", name=name, owner=owner, namespace=namespace)[0]


def controllers_claim(namespace: str = "ml") -> dict[str, Any]:
    """Return the claim of the volume with all weights of a namespace."""
    return _filled("controllers_claim", namespace=namespace)[0]
