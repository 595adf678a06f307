"""The state of one service as data: what can be said of it, and when it is tried again. No Trio, no clock, no own dice.

```
 WaitingForModel ─▶ Fetching ─▶ Pending ─▶ InsufficientMemory ─▶ Loading ─▶ Loaded ─▶ Evicted ─▶ Loading
        ▲              │                                             ▲           │ exit
        │              ▼                                             │           ▼
    (Model gone)   FetchFailed                                    Restarting ◀── first exit in a while: at once
                                                                     ▲           │ again: 1 s, 2 s, 4 s … 60 s
                   ScaledToZero, Invalid                             └── CrashLoopBackOff
```
"""

import random
import signal
from typing import Final

import attrs

from llmkube.base.backoff import Backoff
from llmkube.k8s.wire.reasons import Reason


@attrs.frozen
class Exit:
    """How a process ended: an exit code of 0 or more, or the negated number of the signal that killed it.

    None is the end of an adopted process: the kernel tells its code to its parent only. `for_signature`: macOS has said
    that it killed it because of its code signature.
    """

    code: int | None
    for_signature: bool = False

    def __str__(self) -> str:
        """`exit code 1`, or `killed by SIGKILL`."""
        if self.code is None:
            return "exit code unknown (an earlier agent had started it)"
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"killed by signal {-self.code}"


@attrs.frozen
class Failure:
    """One attempt that ended by itself."""

    reason: Reason
    message: str
    ready_seconds: float = 0.0


def reason_of(error: BaseException) -> Reason:
    """Return the reason that an error gives for itself; an error that gives none comes from the engine program."""
    reason = getattr(error, "reason", "")
    return Reason.of(reason) or Reason.ENGINE_NOT_FOUND


BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)
"""The first exit restarts at once, the next ones wait."""

STABLE_SECONDS: Final = 300.0
"""An engine that has run for so long is forgiven everything."""

PORT_TRIES: Final = 3


@attrs.frozen
class RestartState:
    """How many attempts in a row have failed, and how many of the last ones for want of a free port."""

    failures: int = 0
    port_tries: int = 0


def after_failure(state: RestartState, failure: Failure, rng: random.Random) -> tuple[RestartState, float]:
    """Return the new state and the seconds to wait before the next attempt; 0 means at once.

    A port that another process took before the engine could is no fault of the engine: the next one is tried at once.
    But if that does not help three times in a row, something else is wrong, and until it ends otherwise it is like any
    other.
    """
    taken = failure.reason is Reason.PORT_TAKEN
    if taken and state.port_tries < PORT_TRIES:
        return attrs.evolve(state, port_tries=state.port_tries + 1), 0.0
    failures = 1 if failure.ready_seconds >= STABLE_SECONDS else state.failures + 1
    delay = 0.0 if failures == 1 else BACKOFF.delay(failures - 1, rng)
    return RestartState(failures, state.port_tries if taken else 0), delay


@attrs.frozen
class ServiceView:
    """What the agent knows of one service right now; a snapshot, safe to keep.

    `port` is 0 and `pid` is None while no engine runs; `restarts` counts the engines that ended although the agent had
    not asked them to, since the agent started. `ready` is a claim about now. `api_key` lets requests in at the engine;
    it is for the programs that send them, and nothing else shows it. `aliases` are further ids that clients may send.
    `mode` is what the engine was started for, not what a newer spec asks for; empty while none runs. So are `engine`,
    the runtime that serves, its `build` as it was started or, of a daemon that others may upgrade meanwhile, as it says
    now, and `weights_format`; what an earlier release has started tells the runtime alone.
    """

    reason: str
    message: str = ""
    host: str = ""
    port: int = 0
    pid: int | None = None
    alias: str = ""
    restarts: int = 0
    api_key: str = attrs.field(default="", repr=False)
    aliases: tuple[str, ...] = ()
    mode: str = ""
    engine: str = ""
    build: str = ""
    weights_format: str = ""

    @property
    def ready(self) -> bool:
        """Whether the engine is known to answer."""
        return self.reason == Reason.LOADED
