"""A model of launchd by its documentation: `bootout` does not wait, and a job in transition answers 5 or 37."""

from pathlib import Path

import attrs
import trio

from llmkube.cli.commands.programs.background.agent_jobs import AddedSettings, User, agent_job
from llmkube.cli.commands.programs.background.launchctl import CallResult
from llmkube.programs.config import AgentConfig

ADA = User(uid=501, name="ada", home=Path("/Users/ada"))
STATE = Path("/Users/ada/Library/Application Support/llmkube")


def job(*, daemon=False, added=None, config=None):
    """Return the agent's job for ada."""
    return agent_job(ADA, STATE, config or AgentConfig(), added or AddedSettings(), daemon=daemon)


@attrs.define
class LaunchdModel:
    """One domain with at most one job of ours.

    Attributes:
        end_seconds: Time that a job takes to exit after `bootout`.
        session: Whether the domain's user is logged in.
        calls: Names of the subcommands that were called.
    """

    end_seconds: float = 0.0
    session: bool = True
    loaded: bool = False
    runs: int = 0
    file: str = ""
    ends_at: float | None = None
    calls: list[str] = attrs.field(factory=list)

    async def call(self, words):
        """Answer as launchctl does."""
        await trio.sleep(0.01)
        self.calls.append(words[0])
        if self.ends_at is not None and trio.current_time() >= self.ends_at:
            self.loaded, self.ends_at = False, None
        return getattr(self, f"_{words[0]}")(*words[1:])

    def _print(self, target):
        if not self.loaded:
            return CallResult(113, f'Could not find service "{target.rpartition("/")[2]}" in domain for port')
        running = self.ends_at is None
        pid = f"\tpid = 4711\n\tstate = {'running' if running else 'SIGTERMed'}\n"
        return CallResult(0, f"{target} = {{\n\tactive count = 1\n{pid}\truns = {self.runs}\n\tlast exit code = 1\n}}")

    def _bootout(self, target):
        if not self.loaded:
            return CallResult(3, "Boot-out failed: 3: No such process")
        if self.ends_at is not None:
            return CallResult(37, "Boot-out failed: 37: Operation already in progress")
        self.ends_at = trio.current_time() + self.end_seconds
        return CallResult(0, "")

    def _bootstrap(self, domain, file):
        if self.loaded or not self.session:
            return CallResult(5, "Bootstrap failed: 5: Input/output error")
        self.loaded, self.runs, self.file = True, 1, Path(file).name
        return CallResult(0, "")
