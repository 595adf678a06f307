import random

import attrs
import pytest

from lengths import BUSY_HOURS
from llmkube.supervisor.values.liveness import (
    EngineStats,
    Limits,
    Liveness,
    Load,
    Probe,
    ProbeResult,
    percent_loaded,
    step,
    step_load,
)

LIMITS = Limits()
TICK = LIMITS.tick_seconds
REST = ProbeResult("ok", work=0, counters=(0.0,))
LATE = ProbeResult("busy", late=True)


class Engine:
    """An engine's counters from tick to tick: each test moves its own, and responses come by themselves."""

    def __init__(self, answer=None, token=False):
        self.watch, self.now, self.look = Liveness(), 1000.0, EngineStats("S", 1.0)
        self.answer, self.token = answer, token
        self.verdict = None
        self.asked = []
        self._coming = None

    def tick(self, seconds=TICK, **changes):
        """One sample after some seconds; requests of the last tick are answered at this one."""
        self.now += seconds
        self.look = attrs.evolve(self.look, **changes)
        given, self._coming = self._coming, None
        shown = attrs.evolve(self.look, asked=given is not None, answer=given)
        self.watch, self.verdict = step(self.watch, shown, self.now)
        if self.verdict.probe is not Probe.NOTHING:
            self.asked.append((self.now, self.verdict.probe))
            if self.answer is not None:
                answer = self.answer() if callable(self.answer) else self.answer
                token = self.verdict.probe is Probe.TOKEN
                self._coming = ProbeResult("ok" if self.token else "busy", token=self.token) if token else answer
        return self.verdict

    def until_hung(self, limit_seconds, move=dict):
        """Tick until the engine is hung; return the seconds that passed, or None."""
        start = self.now
        while self.now - start < limit_seconds:
            if self.tick(**move()).hung:
                return self.now - start
        return None


def ramp(**rates):
    """Numbers that grow by the same amount each tick."""
    values = dict.fromkeys(rates, 1.0)

    def move():
        for name, rate in rates.items():
            values[name] += rate
        return {name: type(getattr(EngineStats("S", 1.0), name))(value) for name, value in values.items()}

    return move


def test_an_idle_engine_is_never_hung():
    """An engine without work or progress is idle, for a day."""
    assert Engine(REST).until_hung(86_400) is None


def test_an_idle_engine_gets_fewer_and_fewer_requests():
    """Requests to an idle engine come 30, 60, 120 and then every 240 seconds, on a grid that all engines share."""
    engine = Engine(REST)
    engine.until_hung(3600)
    times = [now for now, _ in engine.asked]
    assert 240 - TICK < times[-1] - times[-2] < 240 + TICK
    assert times[-1] % 240 < TICK
    assert len(times) < 22


def test_an_engine_whose_port_is_watched_gets_even_fewer_requests():
    """If the kernel shows no waiting client, requests come every 960 s; a waiting client is noticed within 30 s."""
    engine = Engine(REST)
    engine.until_hung(7200, lambda: {"waiting": False})
    times = [now for now, _ in engine.asked]
    assert 960 - TICK < times[-1] - times[-2] < 960 + TICK
    engine.tick(waiting=True)
    before, count = engine.now, len(engine.asked)
    while len(engine.asked) == count:
        engine.tick(waiting=True)
    assert engine.now - before <= 30 + TICK


def test_an_idle_engine_is_never_asked_for_a_token():
    """Only a suspicious engine is asked for a token."""
    engine = Engine(REST)
    engine.until_hung(7200)
    assert {ask for _, ask in engine.asked} == {Probe.COUNTERS}


@pytest.mark.parametrize(
    ("answer", "move"),
    [
        (LATE, ramp(cpu_seconds=TICK)),
        (LATE, ramp(cpu_seconds=0.05)),
        (LATE, ramp(log_bytes=1)),
        (ProbeResult("ok", late=True), ramp(cpu_seconds=1.0)),
        (ProbeResult("busy"), ramp(cpu_seconds=0.5)),
        (LATE, lambda: {"state": "R"} | ramp(log_bytes=0)()),
    ],
)
def test_silence_is_not_a_hang_while_something_makes_progress(answer, move):
    """CPU time or log lines keep an engine that answers nothing for ten minutes."""
    assert Engine(answer).until_hung(590, move) is None


def test_hours_of_silence_are_fine_while_cpu_time_moves():
    """An engine in a prompt of ten hours may be silent all that time."""
    assert Engine(LATE).until_hung(36_000, ramp(cpu_seconds=1.5)) is None


def test_counters_alone_keep_a_busy_engine():
    """The batch counters of a GPU engine with neither CPU time nor log lines show its progress."""
    count = iter(range(1_000_000))
    engine = Engine(lambda: ProbeResult("ok", work=2, counters=(float(next(count)),)))
    assert engine.until_hung(7200) is None


def test_stopped_twice_in_a_row_is_hung_at_once():
    """The second sample with a stopped process decides, eight seconds after the stop at the latest."""
    engine = Engine(REST)
    for _ in range(5):
        engine.tick()
    assert not engine.tick(state="T").hung
    assert "state T" in engine.tick().hung


def test_a_stopped_process_that_continues_is_fine():
    """A stop in one sample is forgotten at the next."""
    engine = Engine(REST)
    for _ in range(100):
        assert not engine.tick(state="T").hung
        assert not engine.tick(state="S").hung


def test_a_debugged_process_is_not_hung():
    """State t is a debugger's, which will continue it."""
    assert Engine(LATE).until_hung(590, lambda: {"state": "t"}) is None


def test_requests_that_wait_while_nothing_moves_are_a_hang():
    """Work in flight, constant counters and no progress for a minute are enough, whatever /health returns."""
    engine = Engine(ProbeResult("ok", work=3, counters=(7.0,)))
    assert 60 <= engine.until_hung(600) <= 100
    assert engine.verdict.hung.startswith("3 requests wait without progress: no CPU time, no log line")
    assert Probe.TOKEN not in {ask for _, ask in engine.asked}


def test_no_response_and_no_progress_are_a_hang_after_a_token_request():
    """An engine that neither answers nor makes progress is asked for one token before it is given up."""
    engine = Engine(LATE)
    assert 60 <= engine.until_hung(600) <= 150
    assert "not even a request for one token" in engine.verdict.hung
    assert Probe.TOKEN in {ask for _, ask in engine.asked}


def test_a_token_that_comes_saves_an_engine():
    """An engine without responses and progress, but with a token on request, is kept for ever."""
    assert Engine(LATE, token=True).until_hung(36_000) is None


def test_the_cpu_time_of_health_checks_does_not_hide_a_hang():
    """CPU time of a thousandth of a core postpones the verdict to ten minutes, and not for ever."""
    engine = Engine(ProbeResult("ok", work=1, counters=(7.0,)))
    assert 600 <= engine.until_hung(3600, ramp(cpu_seconds=0.004)) <= 700


def test_an_engine_that_burns_time_for_an_hour_without_a_token_is_hung():
    """A loop that takes a whole core but finishes no batch is not work."""
    engine = Engine(ProbeResult("ok", work=1, counters=(7.0,)))
    assert 3600 <= engine.until_hung(7200, ramp(cpu_seconds=TICK)) <= 3800
    assert "no token has been computed" in engine.verdict.hung


def test_unwatched_time_is_not_held_against_an_engine():
    """After a pause of an hour between two samples the engine has been idle for two ticks."""
    engine = Engine(ProbeResult("ok", work=3, counters=(7.0,)))
    for _ in range(8):
        engine.tick()
    assert not engine.tick(3600).hung
    assert engine.watch.still_seconds < 60


def test_the_cost_of_our_own_requests_is_not_progress():
    """Log lines and a bit of CPU time in a tick with our own requests do not postpone a hang."""
    engine = Engine(ProbeResult("ok", work=3, counters=(7.0,)))
    lines = iter(range(1000))

    def move():
        busy = engine._coming is not None
        return {"log_bytes": next(lines), "cpu_seconds": engine.look.cpu_seconds + 0.004} if busy else {}

    assert 60 <= engine.until_hung(600, move) <= 110


@pytest.mark.parametrize(
    ("looks", "reachable"),
    [
        ([True], True),
        ([False], True),
        ([False, False], False),
        ([False, None, False], False),
        ([False, True, False], True),
    ],
)
def test_two_samples_without_a_listener_make_an_engine_unready(looks, reachable):
    """One port sample may be transient; a sample without the port is ignored."""
    engine = Engine()
    engine.tick()
    for listening in looks:
        verdict = engine.tick(listening=listening)
    assert verdict.reachable is reachable


def test_a_response_makes_an_engine_ready_again():
    """After two refusals one 200 is enough."""
    engine = Engine(lambda: state["answer"])
    state = {"answer": ProbeResult("gone")}
    seen = []
    for _ in range(12):
        engine.tick()
        seen.append(engine.verdict.reachable)
    state["answer"] = REST
    for _ in range(3):
        engine.tick()
        seen.append(engine.verdict.reachable)
    assert False in seen
    assert seen[-1]


def test_a_port_without_a_listener_for_a_minute_is_a_hang():
    """A process without its socket is useless, and ends after a minute."""
    engine = Engine(ProbeResult("gone"))
    assert 60 <= engine.until_hung(600, lambda: {"listening": False}) <= 80
    assert "nothing has answered on its port" in engine.verdict.hung


def test_a_busy_process_without_its_port_gets_five_minutes():
    """Its computation may still finish."""
    move = ramp(cpu_seconds=TICK)
    engine = Engine(ProbeResult("gone"))
    assert 300 <= engine.until_hung(600, lambda: move() | {"listening": False}) <= 320


def test_a_step_does_not_change_its_argument():
    """The caller's value is unchanged."""
    watch, _ = step(Liveness(), EngineStats("S", 1.0), 10.0)
    kept = attrs.evolve(watch)
    step(watch, EngineStats("T", 2.0, answer=LATE), 14.0)
    assert watch == kept


def busy_hour(rng):
    """A drawn hour of an engine under load: CPU or GPU, verbose or not, with responses at once or between batches."""
    engine = Engine(token=rng.random() < 0.5)
    share = rng.choice((0.0003, 0.003, 0.05, 1.0, 8.0))
    talks = rng.random() < 0.5
    # A batch ends now and then; on a GPU that is all, and its pieces take small amounts of CPU time.
    batch_seconds = rng.choice((0.5, 5.0, 40.0) if share < 0.01 else (0.5, 5.0, 40.0, 1200.0))
    single = rng.random() < 0.4  # one thread for everything: it answers when a batch has just ended
    batches, cpu, size, began, ends = 0, 1.0, 0, engine.now, engine.now + batch_seconds

    def answer():
        if rng.random() < 0.1 or (single and engine.now - began > 5):
            return ProbeResult("busy" if rng.random() < 0.5 else "ok", late=True)
        return ProbeResult("ok", work=rng.randint(1, 4), counters=(float(batches),))

    engine.answer = answer
    until = engine.now + 3600
    while engine.now < until:
        seconds = TICK * rng.choice((1, 1, 1, 1, 1.1, 3))
        cpu += share * seconds * rng.choice((0.5, 1, 1.5))
        if engine.now + seconds >= ends:
            batches, began = batches + 1, engine.now + seconds
            ends = began + batch_seconds * rng.choice((0.5, 1.0))
            size += 200 if talks else 0
        yield engine.tick(seconds, cpu_seconds=round(cpu, 2), log_bytes=size, state=rng.choice("SSSSSRD"))


def test_no_busy_engine_is_ever_called_hung():
    """In all hours of busy engines, drawn by seed, there is no false alarm."""
    for seed in range(BUSY_HOURS):
        for verdict in busy_hour(random.Random(seed)):
            assert not verdict.hung, f"seed {seed}: {verdict.hung}"


# -- loads ------------------------------------------------------------------------------------------------------------


def loaded(look, **changes):
    """Return the seconds until a load is stalled if these numbers grow each tick; None within two hours."""
    load, now, move = Load(), 0.0, ramp(**changes)
    for _ in range(1800):
        now += TICK
        load, stalled = step_load(load, attrs.evolve(look, **move()), now)
        if stalled:
            return now
    return None


@pytest.mark.parametrize(
    "moving",
    [
        {"log_bytes": 1},
        {"read_bytes": 1},
        {"faults": 1},
        {"resident_bytes": 64 * 1024},
        {"cpu_seconds": 0.08},
    ],
)
def test_a_load_with_progress_has_no_deadline(moving):
    """Progress, even a trickle, is fine for two hours."""
    assert loaded(EngineStats("S", 1.0), **moving) is None


@pytest.mark.parametrize("moving", [{}, {"cpu_seconds": 0.004}, {"resident_bytes": 16}])
def test_a_load_without_progress_has_stalled(moving):
    """Two minutes are enough; the CPU time of readiness requests is ignored."""
    assert 120 <= loaded(EngineStats("S", 1.0), **moving) <= 132


def test_a_load_that_is_stopped_is_noticed_at_once():
    """A stopped process does not load."""
    assert loaded(EngineStats("T", 1.0)) <= 3 * TICK


def test_percent_is_only_reported_where_it_means_something():
    """For a tiny file the program itself is most of the memory; a full one is not complete before it is ready."""
    assert percent_loaded(5 << 20, 1 << 20) is None
    assert percent_loaded(4 << 30, 8 << 30) == 50
    assert percent_loaded(9 << 30, 8 << 30) == 99


def test_errors_of_clients_lead_to_requests_for_one_token_and_two_failed_ones_to_a_restart():
    """One that succeeds clears the engine: the error was that of a request."""
    failed = ProbeResult("busy", token=False, error="it answers 500 to a request for one token: Compute error.")
    for answers, hung in (((failed, failed), failed.error), ((failed, ProbeResult("ok", token=True)), "")):
        watch, _ = step(Liveness(), EngineStats("R", 1.0), 0.0)
        watch, verdict = step(watch, EngineStats("R", 2.0, errors=1), 5.0)
        for at, answer in enumerate(answers, 2):
            assert verdict.probe is Probe.TOKEN
            watch, verdict = step(watch, EngineStats("R", 1.0 + at, answer=answer), 5.0 * at)
        assert (verdict.hung, verdict.probe) == (hung, Probe.NOTHING)
