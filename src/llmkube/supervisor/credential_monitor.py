"""How the host's credential does, from what the API server answers; each change is told once."""

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

_REFUSED: Final = "the API server refuses this host's credential: it has ended, or its account is gone"


@attrs.define(eq=False)
class CredentialMonitor:
    """Hold what is known; those who ask the API server say what it answered.

    Attributes:
        token: The file of a token that `llmkube agent join` has left; None for a credential of another kind.
        value: The credential of now; a new version whenever it changes.
    """

    token: Path | None = None
    value: Mailbox[HostCredential] = attrs.field(factory=lambda: Mailbox(HostCredential()))

    def mark_accepted(self) -> None:
        """The API server has let the host in."""
        if self.value.value.state is CredentialState.REFUSED:
            log.info("the API server accepts this host's credential again")
            self._set_state(CredentialState.ACCEPTED)

    def mark_refused(self) -> None:
        """The API server has answered 401: who that is, it does not know."""
        if self.value.value.state is not CredentialState.REFUSED:
            self._set_state(CredentialState.REFUSED, _REFUSED)
            log.error("the API server refuses this host's credential; engines go on", command=self.value.value.command)

    def set_expiry(self, expires_at: float) -> None:
        """There is a token that is not due, or a new one."""
        now = self.value.value
        if now.state is CredentialState.NOT_RENEWED:
            self._set_state(CredentialState.ACCEPTED)
        if self.value.value.expires_at != expires_at:
            self.value.put_nowait(attrs.evolve(self.value.value, expires_at=expires_at))

    def mark_not_renewed(self, problem: str) -> None:
        """The next token was not to be had; the one that there is may still count."""
        message = f"this host's token was not renewed: {problem}"
        now = self.value.value
        if now.state is not CredentialState.REFUSED and message != now.problem:
            self._set_state(CredentialState.NOT_RENEWED, message)
            log.warning("this host's token was not renewed; will be repeated", error=problem)

    def _set_state(self, state: CredentialState, problem: str = "") -> None:
        command = self._command() if problem else ""
        self.value.put_nowait(HostCredential(state, problem, command, self.value.value.expires_at))

    def _command(self) -> str:
        """The join as it is on the disk now: an administrator may have granted more since this agent began."""
        if self.token is None:
            return ""
        record = read_record(self.token)
        folder = self.token.parent
        return record.command(folder) if record else f"llmkube agent join --network CIDR --state-dir {folder}"


async def run_problem_file(value: Mailbox[HostCredential], path: Path) -> Never:
    """Never return: keep a file that says what is wrong with the credential; there is none while nothing is.

    It is removed at the end: what an agent that has stopped thinks of its credential helps no reader.
    """
    written: str | None = None  # what an earlier agent has left, if it was killed
    try:
        while True:
            version, advice = value.version, value.value.advice
            if advice != written:
                try:
                    await trio.to_thread.run_sync(_write_or_remove, path, advice)
                except OSError as error:
                    log.warning("what is wrong with the host's credential cannot be noted", error=str(error))
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
