"""Decide how a Model's weights are supplied: by a Job, each pod, the engine, or the user in advance. Pure."""

import posixpath
from collections.abc import Sequence
from typing import Final, Literal

import attrs

from llmkube.controller.render.model_sources import (
    CACHE_FOLDER,
    SOURCE_FOLDER,
    cache_key,
    claim_path,
    published_name,
    source_of,
)
from llmkube.controller.render.pod_policy import fetch_refusals, is_allowed_folder, refusal_message
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.job_result import is_inspected
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import changed_paths
from llmkube.k8s.wire.reasons import Reason
from llmkube.weights.errors import WeightsError
from llmkube.weights.ollama_model import REMEDY, OllamaModel
from llmkube.weights.source import BucketFile, HubRepository, ImageSource, LocalFile, VolumeSource

SupplyMode = Literal["nothing", "runtime", "claim", "node", "image", "pods", "job"]

_SOURCE: Final = "Model.spec.source"

_PREFETCH: Final = "Model.spec.prefetch"

_TOLERATIONS: Final = "Model.spec.prefetchTolerations"

_BY_FETCHING: Final = (
    "Model.spec.files",
    "Model.spec.mmproj",
    _PREFETCH,  # and prefetchTolerations
    "Model.spec.refreshPolicy",
    "Model.spec.sha256",
    "Model.spec.sourceSecretRef",
)
"""Path prefixes of fields that take effect only in a fetch."""


@attrs.frozen
class Usage:
    """A service's use of its weights: fetched by the engine itself, by each of its pods, or by the Model's Job."""

    engine_fetches: bool = False
    pods_fetch: bool = False


@attrs.frozen
class Supply:
    """The mode by which a Model's weights are supplied; for `nothing`, with the reason."""

    by: SupplyMode
    reason: str = ""
    message: str = ""


def choose_supply(model: Model, users: Sequence[Usage], settings: WorkloadSettings) -> Supply:
    """Decide how a Model's weights are supplied.

    Args:
        model: The Model.
        users: The use of the weights by each service that refers to the Model.
        settings: Settings for allowed paths on nodes and for volumes.
    """
    fetchers = [user for user in users if not user.engine_fetches]
    by_engine = bool(users) and not fetchers and not model.spec.prefetch
    try:
        source = source_of(model.spec)
        if isinstance(source, VolumeSource | ImageSource | OllamaModel):
            return _supply_without_download(source)
    except WeightsError as error:
        return Supply("runtime") if by_engine else Supply("nothing", error.reason, str(error))
    if isinstance(source, LocalFile) and (_is_allowed(source, settings) or not by_engine):
        return _on_node(source, settings)
    if by_engine:
        return Supply("runtime")
    if isinstance(source, BucketFile) and model.spec.format != "gguf":
        advice = (
            "copy the folder to a PersistentVolumeClaim and use pvc://CLAIM/PATH, or name a Hugging Face repository"
        )
        message = f"{source.redacted}: only GGUF files are fetched from a bucket, not {model.spec.format}: {advice}"
        return Supply("nothing", Reason.SOURCE_UNSUPPORTED, message)
    if isinstance(source, HubRepository) and model.spec.format != "gguf":
        return Supply("runtime")  # dozens of files in a layout that only the engine's own loader knows
    if settings.cache_per_service:
        return Supply("pods")  # also before there is a service: no other volume would be used
    if fetchers and all(user.pods_fetch for user in fetchers) and not model.spec.prefetch:
        return Supply("pods")
    refusals = fetch_refusals(model.spec, settings)
    return Supply("nothing", Reason.NOT_ALLOWED, refusal_message(refusals)) if refusals else Supply("job")


def without_effect(model: Model, supply: Supply, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of fields without effect, given how the weights are supplied.

    Args:
        model: The Model.
        supply: The supply of its weights.
        paths: Paths without effect by the container's plan, which does not depend on the supply.
    """
    if supply.by in ("job", "pods"):
        kept = (_TOLERATIONS, _PREFETCH) if supply.by == "pods" else ()  # pods have their service's tolerations
        return tuple(path for path in paths if path in kept or not path.startswith((_SOURCE, *_BY_FETCHING)))
    if supply.by == "image":
        paths = tuple(path for path in paths if path not in ("Model.spec.files", "Model.spec.mmproj"))
    if supply.by in ("claim", "node", "image"):
        mounted = [path for path in paths if path != _SOURCE]
        named = ("Model.spec.files", "Model.spec.mmproj") if supply.by == "image" else ()
        changed = (path for path in changed_paths(model.spec, "Model.spec") if path not in named)
        given = [path for path in changed if path.startswith(_BY_FETCHING)]
        return tuple(dict.fromkeys((*mounted, *given)))
    return tuple(paths)


def is_remembered(model: Model) -> bool:
    """Whether the status records that the weights of the current source are on the namespace's claim."""
    return model.status.cache_key == cache_key(model.spec) and bool(model.status.path)


def has_header_read(model: Model, supply: Supply) -> bool:
    """Whether a Job reads the header of a mounted file."""
    return supply.by in ("claim", "node", "image") and is_inspected(model)


def weights_path(model: Model, supply: Supply) -> str:
    """Return the path of the weights in a pod once the Model is Ready; empty if only a finished fetch determines it."""
    if supply.by == "job":
        return model.status.path if is_remembered(model) else ""
    if supply.by in ("runtime", "nothing"):
        return ""
    source = source_of(model.spec)
    if isinstance(source, VolumeSource):
        return f"{SOURCE_FOLDER}/{claim_path(source)[1]}"
    if isinstance(source, ImageSource):
        return f"{SOURCE_FOLDER}/{source.file}"
    if isinstance(source, LocalFile):
        return f"{SOURCE_FOLDER}/{posixpath.basename(source.path)}"
    name = published_name(source)
    return f"{CACHE_FOLDER}/{cache_key(model.spec)}/{name}" if name else ""


def _supply_without_download(source: VolumeSource | ImageSource | OllamaModel) -> Supply:
    """Return the supply of a source that LLMKube does not download.

    Raises:
        WeightsError: The source is not a path on a claim.
    """
    if isinstance(source, VolumeSource):
        claim_path(source)
        return Supply("claim")
    if isinstance(source, OllamaModel):
        message = f"{source.redacted} is pulled by Ollama on a host, but pods need files: {REMEDY}"
        return Supply("nothing", Reason.SOURCE_UNSUPPORTED, message)
    if source.file:
        return Supply("image")
    message = f"{source.redacted} names an image but no file in it: set the engine's file in Model.spec.files"
    return Supply("nothing", Reason.SOURCE_INVALID, message)


def _is_allowed(source: LocalFile, settings: WorkloadSettings) -> bool:
    return is_allowed_folder(posixpath.dirname(posixpath.normpath(source.path)), settings)


def _on_node(source: LocalFile, settings: WorkloadSettings) -> Supply:
    if _is_allowed(source, settings):
        return Supply("node")
    allowed = ", ".join(settings.host_paths) or "none"
    message = (
        f"{source.path} is a path on a node, but pods may mount only the folders in "
        f"workloads.allow.hostPaths of the chart (the controller's --host-path): {allowed}; copy the file to a "
        "PersistentVolumeClaim and use pvc://CLAIM/PATH, or add its folder to workloads.allow.hostPaths"
    )
    return Supply("nothing", Reason.SOURCE_NOT_ALLOWED, message)
