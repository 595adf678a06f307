"""What the chip of a Mac draws: macOS's powermetrics measures it, and prints every two seconds while the agent reads.

powermetrics wants root. An agent that is not root gets it for this one command line: `sudoers_rule` renders the grant,
and sudo compares every word of it, since there is no pattern in it. What the agent cannot do is to signal a process of
root: a sampler whose agent has gone ends at its next line, which has no reader (SIGPIPE).

The text is what `powermetrics --samplers cpu_power,gpu_power` prints on Apple silicon since macOS 13. Its manual,
powermetrics(1), calls the figures estimates: they compare runs on one machine, and not one machine with another.
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
"""Over how long powermetrics takes the mean; a stop of the agent waits that long for its next line."""

FIRST_SECONDS: Final = 30.0
"""How long the first sample may take; the next ones have `STALE_SECONDS` each."""

POWERMETRICS: Final = (
    "/usr/bin/powermetrics",
    *("--buffer-size", "1"),  # line by line: a pipe would get some kilobytes at once, minutes late
    *("--samplers", "cpu_power,gpu_power"),
    *("--sample-rate", str(SAMPLE_SECONDS * 1000)),
)
"""The command; Apple's own program, and no other, since it runs as root."""

SUDO: Final = ("/usr/bin/sudo", "-n")

DOMAINS: Final = ("cpu", "gpu", "ane")
"""What is measured apart; `combined` is what powermetrics gives for them together."""

HINTS: Final = {
    PowerProblem.NOT_PERMITTED: "`make install-powermetrics-sudo`, or `llmkube agent sudoers`, lets it run as root",
    PowerProblem.NOT_FOUND: "macOS has it at /usr/bin/powermetrics; elsewhere leave out --apple-power-enabled",
}
"""What mends a problem, where its owner can."""

RETRY: Final = Backoff(base_seconds=5, cap_seconds=600)

_HEADER: Final = re.compile(r"\*\*\* Sampled system activity \(.*\) \(([0-9]{1,9}(?:\.[0-9]{1,9})?)ms elapsed\) \*\*\*")
_POWER: Final = re.compile(r"(CPU|GPU|ANE|Combined) Power(?: \(.*\))?: ([0-9]{1,7}) mW")
_PERMISSION_MESSAGES: Final = (
    "a password is required",
    "is not in the sudoers",
    "not allowed to execute",
    "as the superuser",
)
"""What sudo says without a line in sudoers, and powermetrics without root."""

_MAX_LINE_BYTES: Final = 65536
_LAST_LINES: Final = 5


@attrs.define(eq=False)
class PowerReader:
    """Make samples of lines; a line that says nothing about power is passed over.

    The line of the sum ends a sample. macOS 12 writes none: there the next sample's header does, and the sum is ours.
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
            self._watts.setdefault(domain, int(found[2]) / 1000)  # the GPU's section says the GPU's again
            if domain == COMBINED:
                sample = PowerSample(self._watts, self._seconds)
                self._seconds = 0.0
                return sample
        return None


def problem_of(output_tail: str, code: int | None, *, writes: bool) -> PowerProblem:
    """Return why a sampler gives no sample.

    Args:
        output_tail: Its last ones.
        code: What it has exited with, or the negated signal; None while it runs.
        writes: Whether it has written anything of late.
    """
    if any(each in output_tail for each in _PERMISSION_MESSAGES):
        return PowerProblem.NOT_PERMITTED
    if code is None:
        return PowerProblem.NOT_UNDERSTOOD if writes else PowerProblem.SILENT
    return PowerProblem.KILLED if code < 0 else PowerProblem.ENDED


def power_command(uid: int) -> tuple[str, ...]:
    """Return the command line for a user: through sudo, unless that is root."""
    return POWERMETRICS if uid == 0 else (*SUDO, *POWERMETRICS)


def sudoers_rule(uid: int) -> str:
    r"""Return the lines for /etc/sudoers.d that let a user run powermetrics with exactly these arguments.

    The user is named by number: no name has to be quoted. A comma ends a command there, unless it is written `\,`
    (sudoers(5)); no wildcard is used, for one would match across spaces and so admit `--output-file` to any file.
    """
    command = " ".join(POWERMETRICS).replace(",", r"\,")
    return (
        "# The one command line that `llmkube agent --apple-power-enabled` runs as root.\n"
        f"#{uid} ALL=(root) NOPASSWD: {command}\n"
    )


@attrs.define(eq=False)
class Powermetrics:
    """The source of a Mac; a sampler that ends, or tells nothing any more, is told with its last words and tried again.

    Attributes:
        command: How it is run.
        rng: Dice for the pauses.
        name: What its figures are called after.
        domains: What it measures apart.
    """

    command: Sequence[str]
    rng: random.Random
    name: str = "apple"
    domains: tuple[str, ...] = DOMAINS

    async def run(self, take: Callable[[PowerSample], None], failed: Callable[[PowerProblem], None]) -> Never:
        """Never return: feed samples, and tell failures."""
        failures = 0
        while True:
            received, problem, why = await self._listen(take)
            failed(problem)
            failures = 1 if received else failures + 1
            delay = RETRY.delay(failures, self.rng)
            log.warning(
                "powermetrics gives no samples",
                problem=str(problem),
                said=why,
                hint=HINTS.get(problem, ""),
                againInSeconds=round(delay),
            )
            await trio.sleep(delay)

    async def _listen(self, take: Callable[[PowerSample], None]) -> tuple[bool, PowerProblem, str]:
        """Feed samples until none comes any more; return whether one came, why no other does, and the last words."""
        try:
            process = await trio.lowlevel.open_process(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            return False, PowerProblem.NOT_FOUND, f"{self.command[0]}: {error.strerror}"
        reader, received, written_at = PowerReader(), False, -math.inf
        output_tail: deque[str] = deque(maxlen=_LAST_LINES)
        assert process.stdout is not None, "it was asked for"
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
                    with trio.move_on_after(SAMPLE_SECONDS):  # its output has ended, and so has it
                        await process.wait()
                code, writes = process.returncode, trio.current_time() - written_at < 2 * SAMPLE_SECONDS
        finally:
            # Also when cancelled: no other task would reap it.
            with trio.move_on_after(2 * (SAMPLE_SECONDS + 1) + 1, shield=True):
                await _end(process)
        return received, problem_of("\n".join(output_tail), code, writes=writes), "\n".join(output_tail)


async def _end(process: trio.Process) -> None:
    """End a sampler; one of root's is not ours to signal, and ends at its next line, which has no reader.

    One that is stopped hears KILL alone.
    """
    for signal_it in (process.terminate, process.kill):
        with contextlib.suppress(OSError):
            signal_it()
        with trio.move_on_after(SAMPLE_SECONDS + 1):
            await process.wait()
        if process.returncode is not None:
            return
