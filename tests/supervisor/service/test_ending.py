"""Why an engine ended, from how far it came, how it exited and what it said last."""

import signal

import pytest

from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.process.exits import LLAMA_RULES
from llmkube.supervisor.nouns.lifecycle import Exit, Failure
from llmkube.supervisor.service.ending import Outcome, failure_of

TAKEN = "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 4711"
HUNG = Failure(Reason.HUNG, "the engine hangs: no answer for 60 s")
KILLED = Exit(-signal.SIGKILL)


@pytest.mark.parametrize(
    ("outcome", "lines", "reason", "begins", "seconds"),
    [
        (Outcome(exit=Exit(3)), [], Reason.ENGINE_EXITED, "the engine ended while loading: exit code 3", 0),
        (Outcome(exit=Exit(0), ready_at=40.0), [], Reason.ENGINE_EXITED, "the engine ended while serving: exit", 60),
        (Outcome(exit=Exit(1)), [TAKEN], Reason.PORT_TAKEN, "the engine ended while loading: exit code 1: another", 0),
        (Outcome(exit=Exit(1), ready_at=99.5), [TAKEN], Reason.ENGINE_EXITED, "the engine ended while serving: ", 0.5),
        (
            Outcome(failure=HUNG, ready_at=10.0),
            ["slot 0"],
            Reason.HUNG,
            f"{HUNG.message}\nslot 0",
            90,
        ),
        (Outcome(failure=HUNG), [], Reason.HUNG, HUNG.message, 0),
        (
            Outcome(failure=HUNG, exit=Exit(2)),
            [],
            Reason.ENGINE_EXITED,
            "the engine ended while loading: exit code 2",
            0,
        ),
    ],
)
def test_what_ended_it_is_told(outcome, lines, reason, begins, seconds):
    """An exit is told before what it was to be ended for; a port that is taken is one only of an engine that loads."""
    told = failure_of(outcome, lines, rules=LLAMA_RULES, now=100.0, memory_kills=0, memory_short=False)
    assert (told.reason, told.ready_seconds) == (reason, seconds)
    assert told.message.startswith(begins)


def test_its_last_words_stand_below():
    """Each of the engine's lines is a line of the message, after the sentence about the end."""
    told = failure_of(
        Outcome(exit=Exit(7)), ["one", "two"], rules=LLAMA_RULES, now=0.0, memory_kills=0, memory_short=False
    )
    assert told.message.splitlines()[1:] == ["one", "two"]


@pytest.mark.parametrize(
    ("kills", "short", "why"),
    [
        (0, False, "LLMKube did not send it"),
        (1, False, "the kernel killed a process of this host"),
        (0, True, "this host was short of memory"),
    ],
)
def test_a_lack_of_memory_is_told(kills, short, why):
    """A SIGKILL is put down to memory where the kernel counted a kill, or the host was short when last looked at."""
    told = failure_of(
        Outcome(exit=KILLED, ready_at=1.0), [], rules=LLAMA_RULES, now=2.0, memory_kills=kills, memory_short=short
    )
    assert told.message.startswith(f"the engine ended while serving: killed by SIGKILL: {why}")
