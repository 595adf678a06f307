"""The API keys that a service names (`spec.apiKeySecretRef`), read from its Secret whenever they are needed.

Messages name the Secret and what is wrong with it, and never what was found there.
"""

import base64

import attrs

from llmkube.base.errors import UserError
from llmkube.k8s.builtins import Secret
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.credentials import ReadSecret, read_named_secret
from llmkube.supervisor.nouns.api_keys import parse_keys

FIELD = "spec.apiKeySecretRef"


class APIKeysError(UserError):
    """There are no API keys where the service says that there are some."""

    reason = Reason.API_KEYS_UNAVAILABLE


def keys_in(secret: Secret, wanted: str) -> tuple[str, ...]:
    """Return the API keys that a Secret has under one of its own keys.

    Raises:
        APIKeysError: It has none there, or something else.
    """
    where = f"Secret {secret.key.name} in namespace {secret.key.namespace}"
    if wanted not in secret.data:
        there = ", ".join(sorted(secret.data)) or "nothing"
        raise APIKeysError(f"{where} has no key {wanted} (it has {there}); add that key", field=FIELD)
    try:
        return parse_keys(base64.b64decode(secret.data[wanted], validate=True))
    except ValueError as error:
        raise APIKeysError(f"{wanted} in {where} {error}", field=FIELD) from None


@attrs.frozen(eq=False)
class ClientKeys:
    """Find the API keys of services; `read_secret` raises NotFoundError when there is no such Secret."""

    read_secret: ReadSecret

    async def find(self, service: InferenceService) -> tuple[str, ...]:
        """Return the keys that a service's clients show.

        Raises:
            APIKeysError: The service names none, or its Secret is missing, or holds something else.
            WorldError: The API server does not say.
        """
        reference = service.spec.api_key_secret_ref
        if reference is None:
            raise APIKeysError("names no Secret", field=FIELD)
        key, wanted = Key(service.key.namespace, reference.name), reference.key
        secret = await read_named_secret(self.read_secret, key, wanted, FIELD, APIKeysError)
        return keys_in(secret, wanted)
