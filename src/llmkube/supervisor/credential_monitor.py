"""Track the state of the host's credential from answers of the API server, and report each change once."""

import contextlib
from pathlib import Path
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.base.private_files import write_private
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
