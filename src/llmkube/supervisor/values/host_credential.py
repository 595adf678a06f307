"""What is known of the credential by which a host speaks to the API server."""

import datetime
import enum
from pathlib import Path

import attrs


class CredentialState(enum.StrEnum):
    """How a host's credential does; engines go on in each of these."""

    ACCEPTED = "Accepted"
    NOT_RENEWED = "NotRenewed"  # it still counts, and the next one is not to be had
    REFUSED = "Refused"  # it has ended, or its account is gone


@attrs.frozen
class HostCredential:
    """The credential of now.

    Attributes:
        state: How it does.
        problem: Why it is not as it should be; empty while it is.
        command: What an administrator runs to mend it; empty where `llmkube agent join` has not made the credential.
        expires_at: When its life ends, in seconds since 1970, where that is known.
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
        """The problem and what to do about it, in one sentence; empty without a problem."""
        if not self.problem:
            return ""
        fix = f"an administrator of the cluster {self._fix}"
        if self.state is CredentialState.REFUSED:
            return f"{self.problem}; engines go on; {fix}"
        until = "" if self.expires_at is None else f" until {_minute(self.expires_at)}"
        return f"{self.problem}; the old one is valid{until}, and the agent tries again; if it ends, {fix}"


def problem_path(state_dir: Path) -> Path:
    """Return where an agent leaves what is wrong with its credential, for commands on its host."""
    return state_dir / "credential-problem"


def _minute(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M} UTC"
