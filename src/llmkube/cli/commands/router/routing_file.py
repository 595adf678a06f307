"""Read the file of `router` and `router explain`: a ModelRouter or a compiled config."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import structlog

from llmkube.base import json_text
from llmkube.base.errors import UserError
from llmkube.cli.commands.tools.files import load_manifests
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.router.config.compile_router import ResolvedService, compile_router
from llmkube.router.config.config_json import decode_config
from llmkube.router.config.routing_config import RoutingConfig

log = structlog.get_logger()
_KIND = ModelRouter.RESOURCE
_NAMESPACE: Final = "default"
"""Namespace of a ModelRouter without one."""


@attrs.frozen(kw_only=True)
class RoutingFile:
    """The content of a file.

    Attributes:
        config: The compiled config.
        warnings: Warnings of the compiler.
        not_honoured: Paths of fields without effect.
    """

    config: RoutingConfig
    warnings: tuple[str, ...] = ()
    not_honoured: tuple[str, ...] = ()

    def log_new(self, logged: set[str]) -> None:
        """Log warnings and fields without effect, except those in `logged`, to which they are added."""
        for each in (*self.warnings, *(f"{path} has no effect" for path in self.not_honoured)):
            if each not in logged:
                log.warning(each)
                logged.add(each)


def load_routing(
    name: str, resolve: Callable[[str, str], ResolvedService | None], *, keys_folder: str, needs_backends: bool = True
) -> RoutingFile:
    """Read a file with one ModelRouter, possibly among other objects, or with a compiled config.

    Args:
        name: The file, or `-` for standard input.
        resolve: Returns the address of an InferenceService by namespace and name; None if there is none.
        keys_folder: Folder of the keys.
        needs_backends: Whether it is an error to have no backends.

    Raises:
        UserError: The file cannot be read or is invalid; the message lists all problems.
    """
    text = sys.stdin.read() if name == "-" else None
    if (data := _compiled(name, text)) is not None:
        return RoutingFile(config=decode_config(data))
    bodies = [one.body for one in load_manifests((name,), lambda: text or "")]
    routers = [body for body in bodies if (body["apiVersion"], body["kind"]) == (_KIND.api_version, _KIND.kind)]
    if len(routers) != 1:
        raise UserError(f"{name}: found {len(routers)} ModelRouters; use a file with exactly one")
    metadata = {"namespace": _NAMESPACE, **routers[0]["metadata"]}
    found = decode(ModelRouter, {**routers[0], "metadata": metadata})
    compiled = compile_router(
        found,
        lambda service: resolve(found.metadata.namespace, service),
        keys_folder=keys_folder,
        needs_backends=needs_backends,
    )
    if compiled.config is None:
        raise UserError("\n".join(f"{name}: {error}" for error in compiled.errors))
    return RoutingFile(config=compiled.config, warnings=compiled.warnings, not_honoured=compiled.not_honoured)


def _compiled(name: str, text: str | None) -> bytes | None:
    """Return the content of a compiled config, which is JSON with a version and without a kind; else None."""
    try:
        data = Path(name).read_bytes() if text is None else text.encode()
        value: Any = json_text.loads(data)
    except (OSError, ValueError, RecursionError):
        return None  # load_manifests reports the error
    return data if isinstance(value, Mapping) and "version" in value and "kind" not in value else None
