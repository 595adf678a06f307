"""Renew the token of a host's own account, long before it expires.

`llmkube agent join` writes the token to a file of the state directory. Each request reads that file (`k8s.auth`), so a
new token is used at once. A token that has expired, because the host slept or the API server shortened its lifetime,
cannot be renewed: engines keep running, and the agent reports the command that an administrator has to run
(`credential_monitor`).
"""

import base64
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.private_files import write_private
from llmkube.k8s.builtins import ServiceAccount
from llmkube.k8s.client import Client
from llmkube.k8s.errors import TransportError, UnauthorizedError
from llmkube.supervisor.credential_monitor import CredentialMonitor

log = structlog.get_logger(__name__)

TOKEN_SECONDS: Final = 7 * 24 * 3600
"""Requested lifetime of a token; the API server may shorten it."""

RENEW_AFTER: Final = 0.5
"""Share of its lifetime after which a token is renewed; the host may sleep for the rest."""

# Not one sleep until the token is due: Trio's clock stops while a host sleeps.
CHECK_SECONDS: Final = 15.0
"""Interval at which the wall clock is compared with the token."""

_MAX_TIMESTAMP: Final = 253402300800
"""The first second after the year 9999, in seconds since 1970; later ones are no valid dates."""

RETRY_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 15.0


@attrs.frozen
class HostToken:
    """Claims in a token, which only the API server can verify.

    Attributes:
        namespace: Namespace of the account.
        account: Name of the account.
        issued_at: Start of its lifetime, in seconds since 1970.
        expires_at: End of its lifetime, in seconds since 1970.
    """

    namespace: str
    account: str
    issued_at: float
    expires_at: float

    def is_due(self, now: float) -> bool:
        """Whether it should be renewed; `now` is in seconds since 1970."""
        return now >= self.issued_at + RENEW_AFTER * (self.expires_at - self.issued_at)


def read_token(text: str) -> HostToken | None:
    """Return the claims in a ServiceAccount's bound token, or None for anything else."""
    try:
        body = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        system, kind, namespace, account = claims["sub"].split(":")
        token = HostToken(namespace, account, float(claims["iat"]), float(claims["exp"]))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
    in_range = all(0 <= moment < _MAX_TIMESTAMP for moment in (token.issued_at, token.expires_at))
    return token if in_range and (system, kind) == ("system", "serviceaccount") else None


async def request_token(client: Client, namespace: str, account: str, seconds: int = TOKEN_SECONDS) -> str:
    """Return a new token of an account.

    Raises:
        ApiError: The API server does not issue one.
    """
    path = f"{ServiceAccount.RESOURCE.path(namespace, account)}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": seconds}}
    answer = await client.request_json("POST", path, body=body)
    token = answer.get("status", {}).get("token", "") if isinstance(answer, dict) else ""
    if not isinstance(token, str) or read_token(token) is None:
        raise TransportError(f"POST {path}: the response has no token of a ServiceAccount")
    return token


async def run_token_renewal(
    client: Client, path: Path, monitor: CredentialMonitor, utcnow: Callable[[], datetime.datetime]
) -> Never:
    """Replace the token in a file before it expires; report failures once, and retry; never return."""
    while True:
        pause = RETRY_SECONDS
        try:
            await _renew_if_due(client, path, monitor, utcnow().timestamp())
        except UnauthorizedError:
            monitor.mark_refused()
        except (LLMKubeError, OSError, ValueError, trio.TooSlowError) as error:
            monitor.mark_not_renewed(str(error) or "no answer")
        else:
            pause = CHECK_SECONDS
        await trio.sleep(pause)


async def _renew_if_due(client: Client, path: Path, monitor: CredentialMonitor, now: float) -> None:
    token = read_token(path.read_text("ascii"))  # without a thread: each request reads this small file, too
    if token is None:
        return
    if not token.is_due(now):
        monitor.set_expiry(token.expires_at)
        return
    with trio.fail_after(ANSWER_SECONDS):
        fresh = await request_token(client, token.namespace, token.account)
    await trio.to_thread.run_sync(write_private, path, fresh)
    log.info("host token renewed", account=token.account)
    monitor.mark_accepted()
    renewed = read_token(fresh)
    assert renewed is not None, "request_token() has read it"
    monitor.set_expiry(renewed.expires_at)
