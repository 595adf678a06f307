"""What an Ollama beside our engines has in memory: a table, and bugs that the table does not let pass."""

import attrs
import pytest

from cli.commands.doctor.fake_ollama import GIB, URL
from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.cli.commands.doctor.judge import judge
from llmkube.cli.commands.doctor.ollama import Ollama
from llmkube.programs.daemon_engine.processes import Process, Runners, kind_of, runners_in

FINE = Ollama(url=URL, version="0.17.4", listed=("a:latest",), runners=Runners((7,), (), 1), held={7: 2 * GIB})
LIES = attrs.evolve(FINE, listed=())
ORPHAN = Ollama(url=URL, runners=Runners((), (8, 9)), held={8: GIB, 9: GIB})


@pytest.mark.parametrize(
    ("fact", "verdict", "words"),
    [
        (FINE, "pass", "0.17.4 at http://127.0.0.1:11434; 1 model loaded, 2.0 GiB: a:latest"),
        (attrs.evolve(LIES, runners=Runners((), (), 1)), "pass", "0 models loaded"),
        (attrs.evolve(FINE, listed=("a", "b")), "pass", "2 models loaded"),  # the next request starts what is missing
        (attrs.evolve(FINE, runners=Runners()), "pass", "1 model loaded: a:latest"),  # another user's
        (LIES, "warn", "lists 0 models, and 1 process of it holds 2.0 GiB (pid 7)"),
        (ORPHAN, "warn", "2 processes of it still hold 2.0 GiB (pid 8, 9)"),
        (ORPHAN, "warn", "`kill 8 9`"),
        (attrs.evolve(FINE, version=""), "warn", "does not answer at http://127.0.0.1:11434"),
    ],
)
def test_a_fact_is_one_finding_with_its_fix(fact, verdict, words):
    """What is well names what is loaded; what is not names the processes and what ends them."""
    (finding,) = judge([fact])
    assert finding.verdict is Verdict(verdict)
    assert words in f"{finding.found} {finding.why} {finding.fix}"
    assert bool(finding.fix) == (verdict != "pass")


def test_a_machine_without_ollama_has_no_line():
    """Nobody is told of a program that he does not have."""
    assert judge([Ollama(url=URL)]) == ()


def test_orphans_are_told_beside_a_server_that_is_well():
    """One that was started anew knows nothing of what the one before has left."""
    both = attrs.evolve(FINE, runners=Runners((7,), (8,), 1), held={7: GIB, 8: GIB})
    assert [each.verdict for each in judge([both])] == [Verdict.WARN, Verdict.PASS]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("/usr/local/bin/ollama serve", "serve"),
        ("/Applications/Ollama.app/Contents/Resources/ollama runner --model /m --port 1", "runner"),
        ("ollama runner --ollama-engine --model /m", "runner"),
        ("ollama run llama3.2", ""),  # a client
        ("vim ollama serve", ""),
        ("ollama", ""),
        ("", ""),
    ],
)
def test_its_processes_are_known_by_their_command_lines(words, kind):
    """The server, and what has a model; neither its clients nor an editor."""
    assert kind_of(tuple(words.split())) == kind


def test_a_runner_belongs_to_the_server_that_is_its_parent():
    """What init has adopted belongs to none; under a parent that is not known nothing is said of it."""
    serve, runner = ("ollama", "serve"), ("ollama", "runner", "--model", "/m")
    processes = [Process(2, 1, serve), Process(3, 2, runner), Process(4, 1, runner), Process(5, 99, runner)]
    assert runners_in(processes) == Runners((3,), (4,), 1)


def no_orphans(found):
    return attrs.evolve(found, orphans=())


def all_served(found):
    return attrs.evolve(found, served=tuple(sorted((*found.served, *found.orphans))), orphans=())


def all_orphans(found):
    return attrs.evolve(found, served=(), orphans=tuple(sorted((*found.served, *found.orphans))))


def no_servers(found):
    return attrs.evolve(found, servers=0)


@pytest.mark.parametrize("bug", [no_orphans, all_served, all_orphans, no_servers], ids=lambda bug: bug.__name__)
def test_a_bug_in_whose_a_process_is_does_not_pass(monkeypatch, bug):
    """Each of them breaks the test of parents."""
    right = runners_in
    monkeypatch.setitem(globals(), "runners_in", lambda processes: bug(right(processes)))
    with pytest.raises(AssertionError):
        test_a_runner_belongs_to_the_server_that_is_its_parent()


def test_a_runner_whose_parent_cannot_be_read_is_no_orphan():
    """Its server may be another user's, whose command line is hidden: no advice may end its process."""
    runner = Process(11, 10, ("ollama", "runner"))
    assert runners_in([Process(10, 1, ()), runner]) == Runners()
    adopted = Process(11, 1, ("ollama", "runner"))
    assert runners_in([Process(1, 0, ()), adopted]).orphans == (11,)
    renamed = Process(10, 1, ("/opt/ollama-0.17", "serve"))
    assert runners_in([renamed, runner]) == Runners()
    user_manager = Process(10, 1, ("/lib/systemd/systemd", "--user"))
    assert runners_in([user_manager, runner]).orphans == (11,)
