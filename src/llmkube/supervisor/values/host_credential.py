"""The state of a host's credential for the API server."""

import datetime
import enum
from pathlib import Path

import attrs


class CredentialState(enum.StrEnum):
    """State of a host's credential; engines keep running in each of them."""

    ACCEPTED = "Accepted"
    NOT_RENEWED = "NotRenewed"  # still valid, but a new one could not be obtained
    REFUSED = "Refused"  # expired, or its account is gone


@attrs.frozen
class HostCredential:
    """The current credential.

    Attributes:
        state: Its state.
        problem: Its problem, if it has one.
        command: Command that an administrator runs to fix it; "" if `llmkube agent join` did not create it.
        expires_at: Its expiry in seconds since 1970; None if not known.
    """

    state: CredentialState = CredentialState.ACCEPTED
    problem: str = ""
    command: str = ""
    expires_at: float | None = None

    @property
    def _fix(self) -> str:
        return f"runs: {self.command}" if self.command else "renews what the agent's kubeconfig names"

    @property
    def advice(self) -> str:
        """The problem and its fix, in one sentence; "" without a problem."""
        if not self.problem:
            return ""
        fix = f"an administrator of the cluster {self._fix}"
        if self.state is CredentialState.REFUSED:
            return f"{self.problem}; engines keep running; {fix}"
        until = "" if self.expires_at is None else f" until {_minute(self.expires_at)}"
        return f"{self.problem}; the old one is valid{until}, and the agent keeps trying; if it expires, {fix}"


def problem_path(state_dir: Path) -> Path:
    """Return the path of the file in which an agent reports a problem of its credential to commands on its host."""
    return state_dir / "credential-problem"


def _minute(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M} UTC"
