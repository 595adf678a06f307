from cli.cli_objects import condition, model, service
from llmkube.cli.view.progress import Stopwatch, changes, detail_of, phases_of


def test_the_stopwatch_measures_from_the_last_step():
    """Each step starts where the previous one ended, and the times add up to the total."""
    watch = Stopwatch(100.0)
    assert watch.mark_done(0, 101.0) == []
    assert watch.mark_done(1, 102.0) == ["fetch"]
    assert watch.mark_done(3, 105.0) == ["load", "ready"]
    assert watch.mark_done(2, 106.0) == []
    assert watch.mark_done(3, 107.0) == []
    watch.lap("answer", 107.5)
    assert watch.laps == {"fetch": 2.0, "load": 3.0, "ready": 0.0, "answer": 2.5}


def test_completed_step_has_a_detail():
    """`fetch` has the size, `load` the kind of model, `ready` the address."""
    the_model = model(size="933.8 KiB", gguf={"architecture": "llama", "quantization": "Q8_0"})
    the_service = service(endpoint="http://x")
    facts = [detail_of(step, the_service, the_model) for step in ("fetch", "load", "ready", "answer")]
    assert facts == ["933.8 KiB", "llama, Q8_0", "http://x", ""]


def test_changes_are_reported_once():
    """New, changed and deleted services get one line each; unchanged ones none, whatever the agent reports."""
    before = phases_of([service("a", phase="Ready"), service("b", phase="Ready"), service("c", phase="Creating")])
    after = phases_of(
        [
            service("a", phase="Ready", schedulingStatus="Restarting"),
            service("c", condition("Available", False, "CrashLoopBackOff\x1b[2J"), phase="Failed"),
            service("d", namespace="x"),
        ]
    )
    assert changes(before, after) == ["default/b: deleted", "default/c: Failed (CrashLoopBackOff�[2J)", "x/d: New"]
    assert changes(after, after) == []


def test_a_wait_is_reported_with_its_reason_and_its_beginning():
    """A waiting download is reported once with its reason and start; changed figures are no change."""

    def fetching(words):
        return phases_of([service("a", condition("Available", False, "Fetching", words), phase="Pending")])

    half, more = fetching("downloading: 1 B of 2 B (50 %), 1 B/s"), fetching("downloading: 2 B of 2 B (100 %), 1 B/s")
    waits = fetching("waiting since 2026-01-01T00:00:00Z: h: refused; next attempt at 2026-01-01T00:00:05Z")
    later = fetching("waiting since 2026-01-01T00:00:00Z: h: refused; next attempt at 2026-01-01T00:00:09Z")
    assert changes({}, half) == ["default/a: Pending (Fetching): downloading: 1 B of 2 B (50 %), 1 B/s"]
    assert changes(half, more) == changes(waits, later) == []
    (line,) = changes(more, waits)
    assert line.startswith(
        "default/a: Pending (Fetching): waiting since 2026-01-01T00:00:00Z: h: refused; next attempt"
    )
    assert changes(waits, more) == ["default/a: Pending (Fetching): downloading: 2 B of 2 B (100 %), 1 B/s"]
