import pytest

from cli.cli_objects import condition, model, service
from llmkube.cli.view.progress import Standing, Stopwatch, changes, detail_of, phases_of, standing

FETCHED = condition("Fetched", True, "Fetched")
LOADED = condition("Loaded", True, "Loaded", "loaded in 0.3 s")


@pytest.mark.parametrize(
    ("the_service", "the_model", "expected"),
    [
        (service(), model(), Standing(0, "waiting for the agent")),
        (service(), model("chat", condition("Fetched", False, "Fetching", "copy: 40 %")), Standing(0, "copy: 40 %")),
        (service(), model("chat", condition("Fetched", False, "FetchFailed", "disk full")), Standing(0, "disk full")),
        (service(), model("chat", FETCHED), Standing(1, "waiting for the agent")),
        (
            service("chat", condition("Loaded", False, "Loading", "the engine is loading")),
            model("chat", FETCHED),
            Standing(1, "the engine is loading"),
        ),
        (
            service("chat", condition("Loaded", False, "Restarting", "restarting at once: exit code 1\nlast words")),
            model("chat", FETCHED),
            Standing(1, "restarting at once: exit code 1"),
        ),
        (service("chat", LOADED, phase="Creating"), model("chat", FETCHED), Standing(2, "Creating")),
        (service("chat", LOADED, phase="Ready"), model("chat", FETCHED), Standing(3, "loaded in 0.3 s")),
    ],
)
def test_steps_follow_the_conditions(the_service, the_model, expected):
    """What is done and what goes on follow from the conditions of the service and its Model alone."""
    assert standing(the_service, the_model, {"cpu"}) == expected


@pytest.mark.parametrize(
    ("the_service", "the_model", "failure"),
    [
        (service(), None, "ModelNotFound: there is no Model chat; apply one"),
        (service(), model(accelerator="metal"), "NoHost: the Model asks for metal, and this host serves cpu"),
        (
            service("chat", condition("Accepted", False, "Invalid", "spec.extraArgs: --port is ours")),
            model(),
            "Invalid: spec.extraArgs: --port is ours",
        ),
        (
            service("chat", condition("Loaded", False, "CrashLoopBackOff", "2 failures\nerror: no such file")),
            model("chat", FETCHED),
            "CrashLoopBackOff: 2 failures\nerror: no such file",
        ),
        (service("chat", condition("Loaded", False, "ScaledToZero", "no")), model(), "ScaledToZero: no"),
        (service(), model("chat", condition("Fetched", False, "NotGGUF", "no magic")), "NotGGUF: no magic"),
    ],
)
def test_hopeless_states_are_failures(the_service, the_model, failure):
    """What no waiting cures is a failure, with the reason and the engine's own words."""
    found = standing(the_service, the_model, {"cpu"})
    assert found.failure.startswith(failure)
    assert not found.ready


def test_an_old_refusal_beats_a_running_engine():
    """A spec that is refused is a failure although the last good one still runs: the question is about the new one."""
    refused = condition("Accepted", False, "Invalid", "no")
    assert standing(service("chat", LOADED, refused, phase="Ready"), model("chat", FETCHED), {"cpu"}).failure


def test_the_stopwatch_measures_from_the_last_step():
    """Each step's time begins where the one before ended, and the times add up to the whole."""
    watch = Stopwatch(100.0)
    assert watch.see(0, 101.0) == []
    assert watch.see(1, 102.0) == ["fetch"]
    assert watch.see(3, 105.0) == ["load", "ready"]
    assert watch.see(2, 106.0) == []
    assert watch.see(3, 107.0) == []
    watch.lap("answer", 107.5)
    assert watch.laps == {"fetch": 2.0, "load": 3.0, "ready": 0.0, "answer": 2.5}


def test_a_done_step_has_its_fact():
    """Beside fetch stands the size, beside load the kind of model, beside ready the address."""
    the_model = model(size="933.8 KiB", gguf={"architecture": "llama", "quantization": "Q8_0"})
    the_service = service(endpoint="http://x")
    facts = [detail_of(step, the_service, the_model) for step in ("fetch", "load", "ready", "answer")]
    assert facts == ["933.8 KiB", "llama, Q8_0", "http://x", ""]


def test_changes_are_told_once():
    """New, changed and vanished services get a line; one that stays as it is gets none, whatever its agent reports."""
    before = phases_of([service("a", phase="Ready"), service("b", phase="Ready"), service("c", phase="Creating")])
    after = phases_of(
        [
            service("a", phase="Ready", schedulingStatus="Restarting"),
            service("c", condition("Available", False, "CrashLoopBackOff\x1b[2J"), phase="Failed"),
            service("d", namespace="x"),
        ]
    )
    assert changes(before, after) == [
        "default/b: gone",
        "default/c: Failed (CrashLoopBackOff�[2J)",
        "x/d: New",
    ]
    assert changes(after, after) == []
