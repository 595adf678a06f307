"""The key that a command shows to a service with `spec.apiKeySecretRef`: from a file, or from the service's own Secret.

It is never an argument: a command line is public.
"""

from pathlib import Path

from llmkube.cli.target_cluster import Cluster
from llmkube.k8s.builtins import Secret
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError
from llmkube.supervisor.credentials import keys_in
from llmkube.supervisor.nouns.api_keys import parse_keys

FLAG = "--api-key-file"


def read_key_file(path: Path) -> str:
    """Return the first key of a file; blocks on the disk.

    Raises:
        CommandError: It cannot be read, or holds something else; the sentence repeats nothing of it.
    """
    try:
        return parse_keys(path.read_bytes())[0]
    except OSError as exc:
        raise CommandError(f"{FLAG}: {path} cannot be read ({exc.strerror or exc})") from exc
    except ValueError as exc:
        raise CommandError(f"{FLAG}: {path} {exc}") from None


async def find_key(cluster: Cluster, service: InferenceService) -> str:
    """Return a key of the service's Secret; "" when its clients have none.

    Raises:
        CommandError: The Secret is missing, or this user may not read it.
        APIKeysError: It holds no key.
    """
    ref = service.spec.api_key_secret_ref
    if ref is None:
        return ""
    key = Key(service.key.namespace, ref.name)
    try:
        secret = await cluster.client.get(Secret, key)
    except (ForbiddenError, NotFoundError) as exc:
        what = "you may not read it" if isinstance(exc, ForbiddenError) else "there is none"
        raise CommandError(
            f"InferenceService {service.key} asks for a key of Secret {key}, and {what}; {FLAG} FILE shows one of yours"
        ) from exc
    return keys_in(secret, ref.key)[0]
