import random

import pytest

from llmkube.base.errors import ExternalError
from llmkube.k8s.wire.reasons import Reason
from llmkube.supervisor.engine.child import AdoptError, DiskFullError, SpawnError
from llmkube.supervisor.engine.launcher import AddressMissingError, EngineNotFoundError, EngineStuckError
from llmkube.supervisor.values.journal import JournalError
from llmkube.supervisor.values.lifecycle import Exit, Failure, RestartState, after_failure, reason_of


def exits(*ready_seconds: float) -> list[float]:
    """The delays after a row of exits, each with the time that the engine had been ready."""
    state, delays, rng = RestartState(), [], random.Random(0)
    for seconds in ready_seconds:
        state, delay = after_failure(state, Failure(Reason.ENGINE_EXITED, "", seconds), rng)
        delays.append(delay)
    return delays


def test_the_first_exit_restarts_at_once():
    """An engine that exits for the first time is restarted without a pause."""
    assert exits(0) == [0]


def test_a_crash_loop_doubles_up_to_a_minute():
    """The n-th exit in a row waits within 20 % below 1, 2, 4 … 60 seconds."""
    delays = exits(*[0] * 12)
    for delay, nominal in zip(delays[1:], [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60], strict=True):
        assert 0.8 * nominal <= delay <= nominal


def test_five_healthy_minutes_reset_the_backoff():
    """After a long healthy run the next exit is a first one again."""
    assert exits(0, 0, 0, 300)[-1] == 0


def test_just_under_five_minutes_reset_nothing():
    """A loop that exits every 299 seconds is still a crash loop."""
    assert exits(299, 299)[-1] > 0


def test_three_ports_are_tried_at_once_and_no_more():
    """After three taken ports in a row the next ones come at a crash loop's pace; another failure resets that."""
    state, delays, rng = RestartState(), [], random.Random(0)
    for reason in [Reason.PORT_TAKEN] * 7 + [Reason.HUNG] + [Reason.PORT_TAKEN] * 2:
        state, delay = after_failure(state, Failure(reason, ""), rng)
        delays.append(delay)
    assert delays[:4] == [0, 0, 0, 0]  # three for the port, one as the first failure of any kind
    assert all(delay > 0 for delay in delays[4:8])
    assert delays[8:] == [0, 0]


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (-200, "killed by signal 200")],
)
def test_an_exit_is_described(code, words):
    """A negative return code is a signal and is named."""
    assert str(Exit(code)) == words


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (EngineNotFoundError, Reason.ENGINE_NOT_FOUND),
        (EngineStuckError, Reason.ENGINE_STUCK),
        (AddressMissingError, Reason.ADDRESS_MISSING),
        (JournalError, Reason.JOURNAL_NOT_WRITTEN),
        (AdoptError, Reason.ENGINE_EXITED),
        (SpawnError, Reason.ENGINE_NOT_FOUND),
        (DiskFullError, Reason.NO_SPACE),
        (ExternalError, Reason.ENGINE_NOT_FOUND),
    ],
)
def test_an_error_keeps_the_reason_that_it_gives(error, reason):
    """The reason of a failed attempt is its own, and an unknown reason breaks no service."""
    assert reason_of(error("x")) is reason
    failure = error("x")
    failure.reason = "OfALaterVersion"
    assert reason_of(failure) is Reason.ENGINE_NOT_FOUND
