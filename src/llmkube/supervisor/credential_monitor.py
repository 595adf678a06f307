"""Track the state of the host's credential, report each change once, and renew its token long before it expires.

The API server's answers show the state. `llmkube agent join` writes the token to a file of the state directory. Each
request reads that file (`k8s.auth`), so a new token is used at once. A token that has expired, because the host slept
or the API server shortened its lifetime, cannot be renewed: engines keep running, and the agent reports the command
that an administrator has to run.
"""

import base64
import contextlib
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.errors import LLMKubeError
from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import write_private
from llmkube.k8s.builtins import ServiceAccount
from llmkube.k8s.client import Client
from llmkube.k8s.errors import TransportError, UnauthorizedError
from llmkube.supervisor.values.host_credential import CredentialState, HostCredential
from llmkube.supervisor.values.join_record import read_record

log = structlog.get_logger(__name__)

_REFUSED: Final = "the API server refuses this host's credential: it has expired, or its account is gone"


@attrs.define(eq=False)
class CredentialMonitor:
    """Holds the state of the credential; tasks that send requests to the API server update it.

    Attributes:
        token: File of a token that `llmkube agent join` wrote; None for a credential of another kind.
        value: The current credential; its version grows whenever it changes.
    """

    token: Path | None = None
    value: Mailbox[HostCredential] = attrs.field(factory=lambda: Mailbox(HostCredential()))

    def mark_accepted(self) -> None:
        """Record that the API server has accepted the credential."""
        if self.value.value.state is CredentialState.REFUSED:
            log.info("host credential accepted again")
            self._set_state(CredentialState.ACCEPTED)

    def mark_refused(self) -> None:
        """Record that the API server has answered 401."""
        if self.value.value.state is not CredentialState.REFUSED:
            self._set_state(CredentialState.REFUSED, _REFUSED)
            log.error("host credential refused; engines keep running", command=self.value.value.command)

    def set_expiry(self, expires_at: float) -> None:
        """Record the expiry of a token that is new, or not due for renewal yet."""
        current = self.value.value
        if current.state is CredentialState.NOT_RENEWED:
            self._set_state(CredentialState.ACCEPTED)
        if self.value.value.expires_at != expires_at:
            self.value.put_nowait(attrs.evolve(self.value.value, expires_at=expires_at))

    def mark_not_renewed(self, problem: str) -> None:
        """Record that the token could not be renewed; the current one may still be valid."""
        message = f"this host's token was not renewed: {problem}"
        current = self.value.value
        if current.state is not CredentialState.REFUSED and message != current.problem:
            self._set_state(CredentialState.NOT_RENEWED, message)
            log.warning("host token not renewed; retrying", error=problem)

    def _set_state(self, state: CredentialState, problem: str = "") -> None:
        command = self._command() if problem else ""
        self.value.put_nowait(HostCredential(state, problem, command, self.value.value.expires_at))

    def _command(self) -> str:
        """Return the command that gives this host a new token."""
        if self.token is None:
            return ""
        record = read_record(self.token)  # each time: an administrator may have granted more since this agent started
        folder = self.token.parent
        return record.command(folder) if record else f"llmkube agent join --network CIDR --state-dir {folder}"


async def run_problem_file(value: Mailbox[HostCredential], path: Path) -> Never:
    """Keep a file with the credential's problem, and remove it while there is no problem; never return.

    The file is removed on exit: the state of an agent that has stopped is of no use.
    """
    written: str | None = None  # not known: an earlier agent that was killed may have left a file
    try:
        while True:
            version, advice = value.version, value.value.advice
            if advice != written:
                try:
                    await trio.to_thread.run_sync(_write_or_remove, path, advice)
                except OSError as error:
                    log.warning("file with the credential's problem not written", error=str(error))
                written = advice
            await value.wait_newer(version)
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _write_or_remove(path: Path, advice: str) -> None:
    if advice:
        write_private(path, f"{advice}\n", durable=False)
    else:
        path.unlink(missing_ok=True)


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
