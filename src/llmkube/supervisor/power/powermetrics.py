"""Power of a Mac's chip, from macOS's powermetrics, which prints a sample every two seconds while the agent reads.

powermetrics must run as root. An agent that is not root may run exactly this command line through sudo: `sudoers_rule`
renders the grant, which has no wildcards, so that sudo compares every argument. The agent cannot signal a root
process; a sampler whose agent is gone exits when it writes to its closed pipe (SIGPIPE).

The format is that of `powermetrics --samplers cpu_power,gpu_power` on Apple silicon since macOS 13. powermetrics(1)
calls the figures estimates: they are comparable between runs on one machine, but not between machines.
"""

import contextlib
import math
import random
import re
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff
from llmkube.supervisor.power.sample import COMBINED, STALE_SECONDS, PowerProblem, PowerSample

log = structlog.get_logger(__name__)

SAMPLE_SECONDS: Final = 2
"""Time over which powermetrics takes the mean; a stop of the agent waits up to that long for its next line."""

FIRST_SECONDS: Final = 30.0
"""Time that the first sample may take; later ones may take `STALE_SECONDS`."""

POWERMETRICS: Final = (
    "/usr/bin/powermetrics",
    *("--buffer-size", "1"),  # line by line; otherwise a pipe gets several kilobytes at once, minutes late
    *("--samplers", "cpu_power,gpu_power"),
    *("--sample-rate", str(SAMPLE_SECONDS * 1000)),
)
"""The command; the absolute path of Apple's program, since it runs as root."""

SUDO: Final = ("/usr/bin/sudo", "-n")

DOMAINS: Final = ("cpu", "gpu", "ane")
"""The domains that are measured; powermetrics also prints their sum, `combined`."""

HINTS: Final = {
    PowerProblem.NOT_PERMITTED: "run `make install-powermetrics-sudo` or `llmkube agent sudoers` to let it run as root",
    PowerProblem.NOT_FOUND: "only macOS has /usr/bin/powermetrics; remove --apple-power-enabled on other systems",
}
"""Fixes for problems that the user can solve."""

RETRY: Final = Backoff(base_seconds=5, cap_seconds=600)

_HEADER: Final = re.compile(r"\*\*\* Sampled system activity \(.*\) \(([0-9]{1,9}(?:\.[0-9]{1,9})?)ms elapsed\) \*\*\*")
_POWER: Final = re.compile(r"(CPU|GPU|ANE|Combined) Power(?: \(.*\))?: ([0-9]{1,7}) mW")
_PERMISSION_MESSAGES: Final = (
    "a password is required",
    "is not in the sudoers",
    "not allowed to execute",
    "as the superuser",
)
"""Messages of sudo without a rule in sudoers, and of powermetrics without root."""

_MAX_LINE_BYTES: Final = 65536
_LAST_LINES: Final = 5


@attrs.define(eq=False)
class PowerReader:
    """Parse lines into samples; lines without power are ignored.

    A sample ends with the line of the sum. macOS 12 prints none: there a sample ends with the header of the next one,
    and the sum is computed here.
    """

    _seconds: float = 0.0
    _watts: dict[str, float] = attrs.field(factory=dict)

    def feed(self, line: str) -> PowerSample | None:
        """Return the sample that this line completes."""
        if header := _HEADER.match(line):
            before = PowerSample(self._watts, self._seconds) if self._watts and self._seconds else None
            self._seconds, self._watts = float(header[1]) / 1000, {}
            if before is not None:
                combined = {COMBINED: sum(before.watts.values())}
                return attrs.evolve(before, watts={**before.watts, **combined})
        elif (found := _POWER.match(line)) and self._seconds:
            domain = found[1].lower()
            self._watts.setdefault(domain, int(found[2]) / 1000)  # the GPU section repeats the figure
            if domain == COMBINED:
                sample = PowerSample(self._watts, self._seconds)
                self._seconds = 0.0
                return sample
        return None


def problem_of(output_tail: str, code: int | None, *, writes: bool) -> PowerProblem:
    """Return why a sampler delivers no sample.

    Args:
        output_tail: The last lines of its output.
        code: Its exit code, or the negated signal; None while it runs.
        writes: Whether it has recently written anything.
    """
    if any(each in output_tail for each in _PERMISSION_MESSAGES):
        return PowerProblem.NOT_PERMITTED
    if code is None:
        return PowerProblem.NOT_UNDERSTOOD if writes else PowerProblem.SILENT
    return PowerProblem.KILLED if code < 0 else PowerProblem.ENDED


def power_command(uid: int) -> tuple[str, ...]:
    """Return the command line for a user: through sudo unless the user is root."""
    return POWERMETRICS if uid == 0 else (*SUDO, *POWERMETRICS)


def sudoers_rule(uid: int) -> str:
    r"""Return the lines for /etc/sudoers.d that let a user run powermetrics with exactly these arguments.

    The user is given by number, which needs no quoting. A comma must be written `\,`, since it separates commands
    (sudoers(5)). No wildcard is used: it would match across spaces, and so allow `--output-file` with any file.
    """
    command = " ".join(POWERMETRICS).replace(",", r"\,")
    return (
        "# The one command line that `llmkube agent --apple-power-enabled` runs as root.\n"
        f"#{uid} ALL=(root) NOPASSWD: {command}\n"
    )


@attrs.define(eq=False)
class Powermetrics:
    """Source of a Mac: runs powermetrics, and restarts it if it exits or writes nothing; its last output is logged.

    Attributes:
        command: The command line.
        rng: Random numbers for the back-off.
        name: Selects the metric names.
        domains: Measured domains.
    """

    command: Sequence[str]
    rng: random.Random
    name: str = "apple"
    domains: tuple[str, ...] = DOMAINS

    async def run(self, take: Callable[[PowerSample], None], failed: Callable[[PowerProblem], None]) -> Never:
        """Deliver samples and failures, forever."""
        failures = 0
        while True:
            received, problem, output = await self._listen(take)
            failed(problem)
            failures = 1 if received else failures + 1
            delay = RETRY.delay(failures, self.rng)
            hint, again = HINTS.get(problem, ""), round(delay)
            log.warning("powermetrics failed", problem=str(problem), said=output, hint=hint, againInSeconds=again)
            await trio.sleep(delay)

    async def _listen(self, take: Callable[[PowerSample], None]) -> tuple[bool, PowerProblem, str]:
        """Deliver samples until they stop; return whether there was one, the problem, and the last output."""
        try:
            process = await trio.lowlevel.open_process(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            return False, PowerProblem.NOT_FOUND, f"{self.command[0]}: {error.strerror}"
        reader, received, written_at = PowerReader(), False, -math.inf
        output_tail: deque[str] = deque(maxlen=_LAST_LINES)
        assert process.stdout is not None, "it is a pipe"
        try:
            async with process.stdout as output:
                with trio.move_on_after(FIRST_SECONDS) as waiting:
                    rest = b""
                    async for chunk in output:
                        written_at = trio.current_time()
                        *lines, rest = (rest + chunk).split(b"\n")
                        rest = rest[-_MAX_LINE_BYTES:]
                        for line in lines:
                            text = line.decode(errors="replace")
                            if text.strip():
                                output_tail.append(text[:500])
                            if (sample := reader.feed(text)) is not None:
                                take(sample)
                                received, waiting.deadline = True, trio.current_time() + STALE_SECONDS
                if not waiting.cancelled_caught:
                    with trio.move_on_after(SAMPLE_SECONDS):  # it has closed its output, and so is exiting
                        await process.wait()
                code, writes = process.returncode, trio.current_time() - written_at < 2 * SAMPLE_SECONDS
        finally:
            # Also on cancellation: no other task would reap it.
            with trio.move_on_after(2 * (SAMPLE_SECONDS + 1) + 1, shield=True):
                await _end(process)
        return received, problem_of("\n".join(output_tail), code, writes=writes), "\n".join(output_tail)


async def _end(process: trio.Process) -> None:
    """Stop a sampler; one that runs as root cannot be signalled, and exits when it writes to its closed pipe.

    KILL is needed for one that is stopped by SIGSTOP.
    """
    for signal_it in (process.terminate, process.kill):
        with contextlib.suppress(OSError):
            signal_it()
        with trio.move_on_after(SAMPLE_SECONDS + 1):
            await process.wait()
        if process.returncode is not None:
            return
