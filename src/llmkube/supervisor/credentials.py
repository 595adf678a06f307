"""Read credentials for sources: from the Secret that a Model names, else from the operator's settings.

The hub needs a token, a bucket the variables of `weights.download.buckets`, a registry a `.dockerconfigjson`.

Credentials are read only when something has to be fetched, and are never stored: a rotated one is used at once, and
nothing can leak. Error messages name the place where a credential was expected, never its content.

The API keys that a service names (`spec.apiKeySecretRef`) are read from its Secret in the same way.
"""

import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.base.errors import ExternalError, UserError
from llmkube.k8s.builtins import Secret
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ApiError, ForbiddenError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.values.api_keys import parse_keys
from llmkube.weights.download.buckets import VARIABLES, BucketAccess
from llmkube.weights.download.registry import CONFIG_KEY, RegistryAccess
from llmkube.weights.source import EngineSource, ImageSource

KEY: Final = "HF_TOKEN"
"""Key in the Secret."""

READ_SECONDS: Final = 15.0
"""Time limit for reading a Secret; the fetch is then retried later."""

_TOKEN: Final = re.compile(r"[!-~]{1,4096}", re.ASCII)  # a single word, valid as part of a header

_FIELD: Final = "spec.sourceSecretRef"

ReadSecret = Callable[[Key], Awaitable[Secret]]


API_KEYS_FIELD = "spec.apiKeySecretRef"


class TokenError(UserError):
    """The token that the Model or the operator names does not exist."""

    reason = Reason.TOKEN_UNAVAILABLE


@attrs.frozen(eq=False)
class SourceCredentials:
    """Finds credentials for the sources of Models.

    Attributes:
        read_secret: Reads one Secret; raises NotFoundError if there is none.
        file: File with the hub's token for Models without a Secret, if there is one.
        limiter: Limits the threads that read it.
        environ: Environment with the variables of a bucket for Models without a Secret.
    """

    read_secret: ReadSecret
    file: Path | None
    limiter: trio.CapacityLimiter
    environ: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    async def find(self, model: Model) -> str | None:
        """Return the token for a Model's source, or None if none is configured.

        Raises:
            TokenError: Its Secret, the key in it, or the operator's file is missing or invalid.
            ExternalError: The API server does not answer.
        """
        key = _secret_of(model)
        if key is not None:
            return await self._token_in(key)
        if self.file is None:
            await trio.lowlevel.checkpoint()
            return None
        return await trio.to_thread.run_sync(partial(read_token_file, self.file), limiter=self.limiter)

    async def find_access(self, model: Model) -> BucketAccess:
        """Return the keys and the endpoint for a Model's object in a bucket.

        Raises:
            TokenError: Its Secret is missing.
            SourceError: The values in the Secret or the environment are invalid.
            ExternalError: The API server does not answer.
        """
        key = _secret_of(model)
        if key is None:
            await trio.lowlevel.checkpoint()
            return BucketAccess.read(self.environ, where="the agent's environment")
        secret = await read_named_secret(self.read_secret, key, VARIABLES[0], _FIELD, TokenError)
        try:
            values = {name: base64.b64decode(text).decode() for name, text in secret.data.items() if name in VARIABLES}
        except ValueError as exc:
            raise TokenError(f"{_describe(key)} contains binary data instead of text", field=_FIELD) from exc
        return BucketAccess.read(values, where=_describe(key))

    async def find_registry(self, model: Model, source: EngineSource) -> RegistryAccess:
        """Return the login for a Model's source in a registry; anonymous if the Model names no Secret.

        Raises:
            TokenError: Its Secret is missing, or is not one for registries.
            SourceError: Its content is invalid.
            ExternalError: The API server does not answer.
        """
        key = _secret_of(model)
        if key is None or not isinstance(source, ImageSource):
            await trio.lowlevel.checkpoint()
            return RegistryAccess()
        where = _describe(key)
        secret = await read_named_secret(self.read_secret, key, CONFIG_KEY, _FIELD, TokenError)
        try:
            text = base64.b64decode(secret.data[CONFIG_KEY], validate=True).decode()
        except KeyError as exc:
            message = f"{where} has no key {CONFIG_KEY}; create it with `kubectl create secret docker-registry`"
            raise TokenError(message, field=_FIELD) from exc
        except ValueError as exc:
            raise TokenError(f"{where} contains binary data instead of text", field=_FIELD) from exc
        return RegistryAccess.read(text, source.registry, where=where)

    async def _token_in(self, key: Key) -> str:
        secret = await read_named_secret(self.read_secret, key, KEY, _FIELD, TokenError)
        try:
            text = _value_in(secret, KEY, _FIELD, TokenError).decode("ascii").strip()
        except ValueError:
            text = ""
        if not _TOKEN.fullmatch(text):
            raise TokenError(f"{KEY} in {_describe(key)} is not a token (one word of ASCII)", field=_FIELD)
        return text


def _secret_of(model: Model) -> Key | None:
    reference = model.spec.source_secret_ref
    return Key(model.key.namespace, reference.name) if reference is not None and reference.name else None


def _describe(key: Key) -> str:
    return f"Secret {key.name} in namespace {key.namespace}"


def _value_in(secret: Secret, wanted: str, field: str, error: type[UserError]) -> bytes:
    """Return the value of a key in a Secret; raise `error` if the key is missing, ValueError if it is not base64."""
    if wanted not in secret.data:
        present = ", ".join(sorted(secret.data)) or "nothing"
        raise error(f"{_describe(secret.key)} has no key {wanted} (it has {present}); add that key", field=field)
    return base64.b64decode(secret.data[wanted], validate=True)


async def read_named_secret(read: ReadSecret, key: Key, wanted: str, field: str, error: type[UserError]) -> Secret:
    """Return the Secret that a field names; `wanted` is the key in it for error messages.

    Raises:
        UserError: As `error`: the Secret does not exist, or the agent may not read it.
        ExternalError: The API server does not answer within `READ_SECONDS`.
    """
    where = _describe(key)
    try:
        with trio.fail_after(READ_SECONDS):
            return await read(key)
    except NotFoundError as exc:
        command = f"kubectl -n {key.namespace} create secret generic {key.name} --from-literal={wanted}=…"
        raise error(f"{where} not found; create it with {wanted}: {command}", field=field) from exc
    except ForbiddenError as exc:
        commands = f"llmkube agent join … --secret {key.name}, or llmkube rbac agent --secret {key.name}"
        raise error(f"the agent may not read {where}; ask an administrator to run: {commands}", field=field) from exc
    except ApiError as exc:
        raise ExternalError(f"{field}: Secret {key} cannot be read now: {exc}") from exc
    except trio.TooSlowError as exc:
        raise ExternalError(f"{field}: no answer in {READ_SECONDS:g} s for Secret {key}") from exc


def read_token_file(path: Path) -> str:
    """Return the token in a file: one word, without surrounding white space. Blocks on the disk.

    Raises:
        TokenError: The file cannot be read, or contains something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(8192).decode("ascii").strip()
    except OSError as exc:
        raise TokenError(f"{path} cannot be read ({exc.strerror or exc})", field="--hf-token-file") from exc
    except UnicodeDecodeError:
        text = ""
    if not _TOKEN.fullmatch(text):
        raise TokenError(f"{path} does not contain a token (one word of ASCII)", field="--hf-token-file")
    return text


class APIKeysError(UserError):
    """The API keys that a service names do not exist or are invalid."""

    reason = Reason.API_KEYS_UNAVAILABLE


def keys_in(secret: Secret, wanted: str) -> tuple[str, ...]:
    """Return the API keys in one entry of a Secret.

    Raises:
        APIKeysError: The entry is missing or invalid.
    """
    try:
        return parse_keys(_value_in(secret, wanted, API_KEYS_FIELD, APIKeysError))
    except ValueError as error:
        raise APIKeysError(f"{wanted} in {_describe(secret.key)} {error}", field=API_KEYS_FIELD) from None


async def client_keys_of(read: ReadSecret, service: InferenceService) -> tuple[str, ...]:
    """Return the API keys of a service's clients; `read` raises NotFoundError if there is no such Secret.

    Raises:
        APIKeysError: The service names no Secret, or its Secret is missing or invalid.
        ExternalError: The API server does not answer.
    """
    reference = service.spec.api_key_secret_ref
    if reference is None:
        raise APIKeysError("names no Secret", field=API_KEYS_FIELD)
    key, wanted = Key(service.key.namespace, reference.name), reference.key
    secret = await read_named_secret(read, key, wanted, API_KEYS_FIELD, APIKeysError)
    return keys_in(secret, wanted)
