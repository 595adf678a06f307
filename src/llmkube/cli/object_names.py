"""Names of objects on the command line: `NAME` is an InferenceService, `KIND/NAME` an object of any of our kinds."""

import re
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar

import attrs
import click

from llmkube.k8s.client import Client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key, Object
from llmkube.k8s.wire.names import is_object_name
from llmkube.programs.failures import CommandError, ExitCode

T = TypeVar("T")
K = TypeVar("K", bound=Object)

KINDS: dict[str, type[Any]] = {
    word: kind
    for kind in (InferenceService, Model, ModelRouter, ModelPool, GPUQuota)
    for word in (kind.RESOURCE.singular, kind.RESOURCE.plural, *kind.RESOURCE.short_names)
} | {"service": InferenceService, "services": InferenceService, "router": ModelRouter, "routers": ModelRouter}
"""The kinds by the names that kubectl accepts, and shorter ones."""


@attrs.frozen
class Target:
    """An object named on the command line."""

    kind: type[Any]
    name: str

    @property
    def title(self) -> str:
        """`InferenceService demo`."""
        return f"{self.kind.RESOURCE.kind} {self.name}"


def check_new_name(name: str) -> None:
    """Refuse a name that no object can have.

    Raises:
        click.UsageError: The name is invalid; the message has a similar one that is valid.
    """
    if not is_object_name(name):
        valid = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
        example = f", such as {valid}" if is_object_name(valid) else ""
        raise click.UsageError(f'"{name}" is not a valid name; use lower-case letters, digits, - and .{example}')


def parse_kind(word: str) -> type[Any]:
    """Parse a kind as kubectl does, in any case: `models`, `mdl`, `isvc`.

    Raises:
        click.UsageError: There is no such kind.
    """
    kind = KINDS.get(word.lower())
    if kind is None:
        raise click.UsageError(f'"{word}" is not a kind; kinds are {", ".join(sorted(KINDS))}')
    return kind


def parse_target(text: str) -> Target:
    """Parse `NAME` (an InferenceService) or `KIND/NAME`: `model/demo`, `isvc/demo`.

    Raises:
        click.UsageError: There is no such kind, or a part is empty.
    """
    word, slash, name = text.rpartition("/")
    kind = KINDS.get(word.lower()) if slash else InferenceService
    if kind is None or not name:
        raise click.UsageError(f'"{text}" is neither NAME nor KIND/NAME; kinds are {", ".join(sorted(KINDS))}')
    return Target(kind, name)


async def get_object(client: Client, target: Target, key: Key) -> Any:
    """Return the object.

    Raises:
        CommandError: The object does not exist; with exit code NOT_FOUND.
    """
    return await with_not_found_error(target, key, lambda: client.get(target.kind, key))


async def get_service(client: Client, key: Key) -> InferenceService:
    """Return the InferenceService.

    Raises:
        CommandError: It does not exist; with exit code NOT_FOUND.
    """
    found: InferenceService = await get_object(client, Target(InferenceService, key.name), key)
    return found


async def find(client: Client, kind: type[K], key: Key) -> K | None:
    """Return an object; None if it does not exist."""
    try:
        return await client.get(kind, key)
    except NotFoundError:
        return None


async def with_not_found_error(target: Target, key: Key, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a call about one object, with NotFoundError turned into a message for the user.

    Raises:
        CommandError: The object does not exist; with exit code NOT_FOUND.
    """
    try:
        return await call()
    except NotFoundError as exc:
        raise CommandError(
            f"there is no {target.title} in namespace {key.namespace}; see `llmkube list -A`", ExitCode.NOT_FOUND
        ) from exc


_QUANTIZATION: Final = re.compile(r"[-.](?:UD-)?(?:I?Q\d\w*|F16|BF16|F32|MXFP4)$", re.IGNORECASE)
_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_MAX_NAME_LENGTH: Final = 50
"""Length limit of a generated name; Kubernetes allows more, but longer names are hard to read."""


def looks_like_source(text: str) -> bool:
    """Whether a text is a path, a URL or a repository rather than the name of a service."""
    return "/" in text or "://" in text or text.lower().endswith(".gguf")


def name_for(source: str) -> str:
    """Return a valid service name for a source, from the name of its file or repository.

    `hf://bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q4_K_M.gguf` is `llama-3.2-1b-instruct`.
    """
    path = source.partition("?")[0].rstrip("/")
    *_, last = re.split(r"/", path.partition("@")[0] if "@" in path.rpartition("/")[2] else path)
    stem = PurePosixPath(last).name.partition(":")[0]
    for suffix in (".gguf", "-GGUF"):
        stem = stem[: -len(suffix)] if stem.lower().endswith(suffix.lower()) else stem
    stem = _QUANTIZATION.sub("", _PART.sub("", stem)).lower()
    return re.sub(r"[^a-z0-9.]+", "-", stem)[:_MAX_NAME_LENGTH].strip("-.") or "model"
