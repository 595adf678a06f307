"""What the chip of a Mac draws: macOS's powermetrics measures it, and prints every two seconds while the agent reads.

powermetrics wants root. An agent that is not root gets it for this one command line: `sudoers_rule` renders the grant,
and sudo compares every word of it, since there is no pattern in it. What the agent cannot do is to signal a process of
root: a sampler whose agent has gone ends at its next line, which has no reader (SIGPIPE).

The text is what `powermetrics --samplers cpu_power,gpu_power` prints on Apple silicon since macOS 13. Its manual,
powermetrics(1), calls the figures estimates: they compare runs on one machine, and not one machine with another.
"""

import contextlib
import random
import re
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Never

import attrs
import structlog
import trio

from llmkube.base.backoff import Backoff

log = structlog.get_logger(__name__)

SAMPLE_SECONDS: Final = 2
"""Over how long powermetrics takes the mean; a stop of the agent waits that long for its next line."""

STALE_SECONDS: Final = 5.0 * SAMPLE_SECONDS
"""A figure that is older says nothing about now."""

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

RETRY: Final = Backoff(base_seconds=5, cap_seconds=600)

_HEADER: Final = re.compile(r"\*\*\* Sampled system activity \(.*\) \(([0-9]{1,9}(?:\.[0-9]{1,9})?)ms elapsed\) \*\*\*")
_POWER: Final = re.compile(r"(CPU|GPU|ANE|Combined) Power(?: \(.*\))?: ([0-9]{1,9}) mW")
_MAX_LINE_BYTES: Final = 65536
_LAST_LINES: Final = 5


@attrs.frozen
class PowerSample:
    """The mean power of each domain over some seconds."""

    watts: Mapping[str, float]
    seconds: float


@attrs.frozen
class PowerView:
    """What is known at one moment: `watts` is empty when nothing newer than `STALE_SECONDS` is."""

    watts: Mapping[str, float]
    joules: Mapping[str, float]


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
                combined = {"combined": sum(before.watts.values())}
                return attrs.evolve(before, watts={**before.watts, **combined})
        elif (found := _POWER.match(line)) and self._seconds:
            domain = found[1].lower()
            self._watts.setdefault(domain, int(found[2]) / 1000)  # the GPU's section says the GPU's again
            if domain == "combined":
                sample = PowerSample(self._watts, self._seconds)
                self._seconds = 0.0
                return sample
        return None


@attrs.define(eq=False)
class PowerMeter:
    """The newest sample, and the energy since the start of the agent."""

    _watts: Mapping[str, float] = attrs.field(factory=dict)
    _taken_at: float = -STALE_SECONDS
    _joules: dict[str, float] = attrs.field(factory=lambda: dict.fromkeys(DOMAINS, 0.0))

    def take(self, sample: PowerSample) -> None:
        """Note a sample that ends now."""
        self._watts, self._taken_at = sample.watts, trio.current_time()
        for domain in DOMAINS:
            self._joules[domain] += sample.watts.get(domain, 0.0) * sample.seconds

    def view(self) -> PowerView:
        """Return what is known now."""
        fresh = trio.current_time() - self._taken_at < STALE_SECONDS
        return PowerView(self._watts if fresh else {}, dict(self._joules))


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


async def run_power_meter(meter: PowerMeter, command: Sequence[str], rng: random.Random) -> Never:
    """Keep a meter current until cancelled; a sampler that ends is told with its last words and tried again."""
    failures = 0
    while True:
        heard, why = await _listen(meter, command)
        failures = 1 if heard else failures + 1
        delay = RETRY.delay(failures, rng)
        hint = "" if heard else "`make install-powermetrics-sudo`, or `llmkube agent sudoers`, lets it run as root"
        log.warning("powermetrics has ended", said=why, hint=hint, againInSeconds=round(delay))
        await trio.sleep(delay)


async def _listen(meter: PowerMeter, command: Sequence[str]) -> tuple[bool, str]:
    """Feed the meter until the sampler ends; return whether it gave a sample, and its last words."""
    try:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        return False, f"{command[0]}: {error.strerror}"
    reader, heard = PowerReader(), False
    words: deque[str] = deque(maxlen=_LAST_LINES)
    assert process.stdout is not None, "it was asked for"
    try:
        async with process.stdout as output:
            rest = b""
            async for piece in output:
                *lines, rest = (rest + piece).split(b"\n")
                rest = rest[-_MAX_LINE_BYTES:]
                for line in lines:
                    text = line.decode(errors="replace")
                    if text.strip():
                        words.append(text[:500])
                    if (sample := reader.feed(text)) is not None:
                        meter.take(sample)
                        heard = True
    finally:
        with contextlib.suppress(OSError):  # not ours to signal if it is root's: the closed pipe ends it
            process.terminate()
        # Also when cancelled: no other task would reap it. Root's ends at its next sample, by writing to a closed pipe.
        with trio.move_on_after(SAMPLE_SECONDS + 1, shield=True):
            await process.wait()
    return heard, "\n".join(words)
