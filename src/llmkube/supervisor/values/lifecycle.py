"""The state of one service, and the delay until its next attempt. No Trio, no clock, no random source of its own.

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
from typing import Final

import attrs

from llmkube.base.backoff import Backoff
from llmkube.base.messages import signal_name
from llmkube.k8s.wire.reasons import Meaning, Reason
from llmkube.runtimes.devices import Offload


@attrs.frozen
class Exit:
    """Exit of a process: an exit code of 0 or more, or the negated number of the signal that killed it.

    The code of an adopted process is None: the kernel reports it to the parent only. `for_signature` is set if macOS
    reported that it killed the process because of its code signature.
    """

    code: int | None
    for_signature: bool = False

    def __str__(self) -> str:
        """`exit code 1`, or `killed by SIGKILL`."""
        if self.code is None:
            return "exit code unknown (an earlier agent started it)"
        return f"exit code {self.code}" if self.code >= 0 else f"killed by {signal_name(-self.code)}"


@attrs.frozen
class Failure:
    """Failure of one attempt; `ready_seconds` is how long its engine had served."""

    reason: Reason
    message: str
    ready_seconds: float = 0.0


def reason_of(error: BaseException) -> Reason:
    """Return the `reason` of an error; an error without one is about the engine program."""
    reason = getattr(error, "reason", "")
    return Reason.of(reason) or Reason.ENGINE_NOT_FOUND


BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=60.0)
"""Delays of restarts from the second failure in a row; after the first failure the engine restarts at once."""

STABLE_SECONDS: Final = 300.0
"""Time of serving after which earlier failures are forgotten."""

PORT_TRIES: Final = 3

REPEATED: Final = frozenset({Reason.PORT_TAKEN, *(each for each in Reason if each.meaning is Meaning.RETRIED)})
"""Reasons of failed attempts that are repeated, at once or after a delay."""


@attrs.frozen
class RestartState:
    """Number of attempts in a row that have failed, and of retries because the port was taken."""

    failures: int = 0
    port_tries: int = 0


def after_failure(state: RestartState, failure: Failure, rng: random.Random) -> tuple[RestartState, float]:
    """Return the new state and the delay in seconds before the next attempt; 0 means at once.

    A port that another process took first is no fault of the engine, so another port is tried at once. After three such
    retries in a row it counts as a failure like any other, until an attempt fails for another reason.
    """
    taken = failure.reason is Reason.PORT_TAKEN
    if taken and state.port_tries < PORT_TRIES:
        return attrs.evolve(state, port_tries=state.port_tries + 1), 0.0
    failures = 1 if failure.ready_seconds >= STABLE_SECONDS else state.failures + 1
    delay = 0.0 if failures == 1 else BACKOFF.delay(failures - 1, rng)
    return RestartState(failures, state.port_tries if taken else 0), delay


@attrs.frozen
class ServiceView:
    """Snapshot of one service.

    `port` is 0 and `pid` is None while no engine runs. `restarts` is the number of engines that failed since the agent
    started. `api_key` is the engine's key for programs that send requests, and is shown nowhere. `aliases` are
    additional model ids that clients may send.

    `mode`, `engine` (the runtime), `build`, `weights_format` and `adapters` (as in its plan) describe the engine that
    was started, not the newest spec, and are empty while none runs. The `build` of a daemon that others may upgrade is
    the current one. An engine that an earlier release started has the runtime only.

    `on_request` is set in snapshots of services that a request loads; `load_seconds` is then the duration of the last
    load, 0 if it is not known, `hold_seconds` the longest wait of a request, if the spec has one, and
    `delayed_until` when others make room for it. `closed` is why new requests wait although the engine answers.

    `given_up` are the settings that the engine has not put into effect although it has loaded, each with the reason.

    `offload` says where the layers of a model that has loaded are, if the engine's log does.

    `behind_door` is set while an engine accepts connections of this host only, although the host publishes its engines.
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
    on_request: bool = False
    load_seconds: float = 0.0
    hold_seconds: float | None = None
    delayed_until: float = 0.0
    closed: str = ""
    behind_door: bool = False
    given_up: tuple[str, ...] = ()
    adapters: tuple[tuple[str, float], ...] = ()
    offload: Offload | None = None

    @property
    def ready(self) -> bool:
        """Whether the engine is known to answer."""
        return self.reason == Reason.LOADED
