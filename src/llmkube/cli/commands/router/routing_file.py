"""The file that `router` and `router explain` are given: a ModelRouter, or a compiled config."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.base import json_text
from llmkube.base.errors import UserError
from llmkube.cli.commands.tools.files import load_manifests
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.router.config.compile_router import ResolvedService, compile_router
from llmkube.router.config.config_json import decode_config
from llmkube.router.config.routing_config import RoutingConfig

_KIND = ModelRouter.RESOURCE
_NAMESPACE: Final = "default"
"""Of a ModelRouter that names none."""


@attrs.frozen(kw_only=True)
class RoutingFile:
    """What a file holds.

    Attributes:
        config: What the router runs by.
        warnings: What its author may not have meant.
        not_honoured: Fields without effect.
    """

    config: RoutingConfig
    warnings: tuple[str, ...] = ()
    not_honoured: tuple[str, ...] = ()


def load_routing(name: str, resolve: Callable[[str, str], ResolvedService | None], *, keys_folder: str) -> RoutingFile:
    """Read a file with one ModelRouter, alone or among other objects, or with a compiled config.

    Args:
        name: The file, or `-`.
        resolve: Returns where an InferenceService answers, by namespace and name.
        keys_folder: Where keys lie.

    Raises:
        UserError: It cannot be read, or not be run by; all problems at once.
    """
    text = sys.stdin.read() if name == "-" else None
    if (data := _compiled(name, text)) is not None:
        return RoutingFile(config=decode_config(data))
    bodies = [one.body for one in load_manifests((name,), lambda: text or "")]
    routers = [body for body in bodies if (body["apiVersion"], body["kind"]) == (_KIND.api_version, _KIND.kind)]
    if len(routers) != 1:
        raise UserError(f"{name}: it has {len(routers)} ModelRouters; give a file with one")
    metadata = {"namespace": _NAMESPACE, **routers[0]["metadata"]}
    found = decode(ModelRouter, {**routers[0], "metadata": metadata})
    compiled = compile_router(
        found, lambda service: resolve(found.metadata.namespace, service), keys_folder=keys_folder
    )
    if compiled.config is None:
        raise UserError("\n".join(f"{name}: {error}" for error in compiled.errors))
    return RoutingFile(config=compiled.config, warnings=compiled.warnings, not_honoured=compiled.not_honoured)


def _compiled(name: str, text: str | None) -> bytes | None:
    """Return a file's content where it is a compiled config: JSON with a version, and without a kind."""
    try:
        data = Path(name).read_bytes() if text is None else text.encode()
        value: Any = json_text.loads(data)
    except (OSError, ValueError, RecursionError):
        return None  # what it is instead, load_manifests says
    return data if isinstance(value, Mapping) and "version" in value and "kind" not in value else None
