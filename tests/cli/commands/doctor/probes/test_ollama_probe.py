"""An Ollama that loads, lies, dies, comes back and moves, on a virtual clock: what is found, and what not believed."""

import math

import pytest
import trio

from cli.commands.doctor.fake_ollama import URL, FakeOllama
from llmkube.cli.commands.doctor.judge import judge
from llmkube.cli.commands.doctor.probes import ollama_probe
from llmkube.cli.commands.doctor.probes.ollama_probe import daemon_url


async def told(fake):
    """The verdicts of one look, and their words."""
    findings = judge([await fake.look()])
    return [each.verdict.value for each in findings], " ".join(f"{each.found} {each.fix}" for each in findings)


async def test_a_day_of_an_ollama(autojump_clock):
    """It loads, unloads, is upgraded, is killed with a model, comes back, and is ended in order."""
    fake = FakeOllama()
    fake.load("a:latest")
    fake.load("b:latest")
    assert await told(fake) == (["pass"], f"0.17.4 at {URL}; 2 models loaded, 2.0 GiB: a:latest, b:latest ")
    fake.unload("b:latest")
    assert (await told(fake))[0] == ["pass"]
    fake.end_server(killed=False)
    assert await told(fake) == ([], "")  # TERM takes its models along
    fake.restart()
    fake.version = "0.18.0"
    assert await told(fake) == (["pass"], f"0.18.0 at {URL}; 0 models loaded ")
    fake.load("a:latest")
    fake.end_server(killed=True)
    verdicts, words = await told(fake)
    assert verdicts == ["warn"]
    assert "`kill 203`" in words
    fake.restart()
    fake.load("a:latest")
    assert (await told(fake))[0] == ["warn", "pass"]  # the orphan stays beside the model that was loaded anew
    fake.orphans.clear()
    assert (await told(fake))[0] == ["pass"]


async def test_an_unload_that_was_said_and_not_done_is_told(autojump_clock):
    """The process is there at the second look, too."""
    fake = FakeOllama()
    fake.load("a:latest")
    fake.unload("a:latest", lies=True)
    verdicts, words = await told(fake)
    assert verdicts == ["warn"]
    assert "lists 0 models, and 1 process of it holds 1.0 GiB (pid 201)" in words


async def test_a_process_that_is_about_to_end_is_no_lie(autojump_clock):
    """A process ends a moment after its model is not listed any more."""
    fake = FakeOllama(lag_seconds=1.0)
    fake.load("a:latest")
    fake.unload("a:latest")
    assert (await told(fake))[0] == ["pass"]


async def test_a_server_that_does_not_answer_where_it_is_asked_is_told(autojump_clock):
    """Its port was changed, or it hangs: its processes show that it is there."""
    fake = FakeOllama(answers=False)
    fake.load("a:latest")
    verdicts, words = await told(fake)
    assert verdicts == ["warn"]
    assert f"does not answer at {URL}" in words
    assert "OLLAMA_HOST=" in words


@pytest.mark.parametrize("odd", [b"", b"Ollama is running", b"[]", b'{"version": 1}', b'{"version": "1"}', b"\xff"])
async def test_what_answers_otherwise_is_no_ollama(autojump_clock, odd):
    """Another program may have its port; it is not an error of ours."""
    fake = FakeOllama(alive=False, odd=odd)
    assert await told(fake) == ([], "")


async def test_a_server_that_hangs_costs_two_questions(autojump_clock):
    """Its line comes all the same, within what a probe may take."""
    fake = FakeOllama(hangs=True)
    with trio.fail_after(8):
        assert (await told(fake))[0] == ["warn"]


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:1234", "http://127.0.0.1:1234"),
        ("http://mac.local:80/", "http://mac.local:80"),
        ("mac.local", "http://mac.local:11434"),
        ("[::1]", "http://[::1]:11434"),
        ("[::]:1", "http://127.0.0.1:1"),
        (":1234", "http://127.0.0.1:1234"),
        ("mac.local:port", "http://mac.local:11434"),
    ],
)
def test_it_is_asked_where_its_own_variable_says(said, url):
    """As its client reads it; a wildcard is where it listens, and not where it is asked."""
    assert daemon_url({"OLLAMA_HOST": said}) == url


def hasty(monkeypatch):
    """One look decides."""
    monkeypatch.setattr(ollama_probe, "AGAIN_SECONDS", 0.0)


def deaf(monkeypatch):
    """No answer is read."""

    async def nothing(http, url):
        await trio.lowlevel.checkpoint()
        return {}

    monkeypatch.setattr(ollama_probe, "_ask", nothing)


def blind(monkeypatch):
    """No process is seen."""
    monkeypatch.setattr(FakeOllama, "processes", lambda self: ())


def credulous(monkeypatch):
    """What the server lists is all that there is."""
    right = ollama_probe.Ollama

    def believing(**found):
        return right(**{**found, "runners": type(found["runners"])(found["runners"].served[: len(found["listed"])])})

    monkeypatch.setattr(ollama_probe, "Ollama", believing)


def patient(monkeypatch):
    """A server that hangs is waited for."""
    monkeypatch.setattr(ollama_probe, "_ASK_SECONDS", math.inf)


@pytest.mark.parametrize(
    ("bug", "timeline"),
    [
        (hasty, test_a_process_that_is_about_to_end_is_no_lie),
        (deaf, test_a_day_of_an_ollama),
        (blind, test_a_day_of_an_ollama),
        (blind, test_a_server_that_does_not_answer_where_it_is_asked_is_told),
        (credulous, test_an_unload_that_was_said_and_not_done_is_told),
        (patient, test_a_server_that_hangs_costs_two_questions),
    ],
)
async def test_a_bug_breaks_a_timeline(autojump_clock, monkeypatch, bug, timeline):
    """Each deliberate bug is seen by the timeline that it is for."""
    bug(monkeypatch)
    with pytest.raises((AssertionError, trio.TooSlowError)):
        await timeline(autojump_clock)
