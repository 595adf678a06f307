"""Source of a Model, and the folder of its weights on a volume. Pure.

A folder's key is a hash of everything that decides which bytes are fetched. An edited source thus has another folder,
and running pods keep the old one until they are replaced.
"""

import hashlib
import json
from typing import Final

from llmkube.k8s.crd.model import Model, ModelSpec
from llmkube.k8s.wire.names import MAX_LABEL, shortened
from llmkube.weights.errors import SourceError, WeightsError
from llmkube.weights.ollama_model import OllamaModel
from llmkube.weights.source import (
    NO_PROJECTOR,
    BucketFile,
    HubRepository,
    ImageSource,
    LocalFile,
    Source,
    VolumeSource,
    parse_source,
    pick,
)
from llmkube.weights.split_names import part_names

CACHE_FOLDER: Final = "/models"

SOURCE_FOLDER: Final = "/model-source"

ON_CHANGE: Final = "OnChange"
"""The `refreshPolicy` of a Model whose source is revalidated."""

_KEY_CHARS: Final = 16


def cache_key(spec: ModelSpec) -> str:
    """Return the folder of a Model's weights; every source, set of files and digest has its own.

    The Secret of a bucket is part of the key, because it names the bucket's server. A source with `OnChange` has one
    folder for each version below its own.
    """
    facts = [spec.source, list(spec.files), spec.mmproj, (spec.sha256 or "").lower()]
    if spec.source_secret_ref and spec.source.startswith("s3://"):
        facts.append(spec.source_secret_ref.name)
    if refreshes_on_change(spec):
        facts.append(ON_CHANGE)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:_KEY_CHARS]


def predecessors_key(spec: ModelSpec) -> str:
    """Return the folder in which the Go implementation stores the weights of a source."""
    return hashlib.sha256(spec.source.encode()).hexdigest()[:_KEY_CHARS]


def source_of(spec: ModelSpec) -> Source:
    """Return the source of the engine's main file; further files are fetched into the same folder.

    Raises:
        WeightsError: The source is invalid, or has no such file.
    """
    return pick(parse_source(spec.source), spec.files[:1])


def claim_path(source: VolumeSource) -> tuple[str, str]:
    """Return claim and path of `pvc://CLAIM/PATH`.

    Raises:
        SourceError: The path is missing, or leads out of the claim.
    """
    claim, _, path = source.text.partition("://")[2].partition("/")
    if not claim or not path or any(step in ("", ".", "..") for step in path.rstrip("/").split("/")):
        raise SourceError(f"{source.text!r} is not a path on a PersistentVolumeClaim; use pvc://CLAIM/PATH")
    return claim, path.rstrip("/")


def published_name(source: Source) -> str:
    """Return the name of the first file in the folder; empty if the number of parts is known only after fetching.

    Parts have the names by which llama.cpp finds them from the first one.
    """
    if isinstance(source, HubRepository | ImageSource | LocalFile | OllamaModel | VolumeSource):
        return ""
    if isinstance(source, BucketFile) and (not source.path or source.path.endswith("/")):
        return ""
    parts = getattr(source, "parts", ("",))
    count = len(parts)
    return "model.gguf" if count == 1 else part_names(f"model-00001-of-{count:05d}.gguf")[0]


def extra_files(spec: ModelSpec) -> tuple[str, ...]:
    """Return the files to fetch besides the first one; the parts of a split model are fetched with their first."""
    named = dict.fromkeys((*spec.files[1:], *(each for each in (spec.mmproj,) if each and each != NO_PROJECTOR)))
    try:
        together = part_names(spec.files[0]) if spec.files else ()
    except WeightsError:
        together = ()
    return tuple(name for name in named if name not in together)


def job_name(model: Model) -> str:
    """Return the name of the Job that fetches a Model's weights; every key has its own."""
    return f"{shortened(model.key.name, MAX_LABEL - _KEY_CHARS - 1)}-{cache_key(model.spec)}"


def refreshes_on_change(spec: ModelSpec) -> bool:
    """Whether a source is revalidated after it has been fetched."""
    return spec.refresh_policy == ON_CHANGE
