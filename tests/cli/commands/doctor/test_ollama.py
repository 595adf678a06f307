"""An Ollama next to LLMKube's engines: findings by its state, also over time on a virtual clock."""

from functools import partial

import attrs
import pytest
import trio

from http_lab import MemoryListener
from llmkube.base.http.client import HttpClient
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import NO_HEADERS, Response
from llmkube.base.http.server import run_server
from llmkube.cli.commands.doctor.daemons import Ollama, assess_ollama, daemon_url, inspect_ollama
from llmkube.cli.commands.doctor.findings import Verdict
from llmkube.programs.daemon_engine.processes import Process, Runners, kind_of, runners_in
from programs.daemon_engine.fake_ollama import LIBRARY_BLOB, URL, FakeDaemon

GIB = 1 << 30

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
        (LIES, "warn", "lists 0 models, but 1 of its processes holds 2.0 GiB (pid 7)"),
        (ORPHAN, "warn", "2 of its processes still hold 2.0 GiB (pid 8, 9)"),
        (ORPHAN, "warn", "`kill 8 9`"),
        (attrs.evolve(FINE, version=""), "warn", "does not answer at http://127.0.0.1:11434"),
    ],
)
def test_a_fact_is_one_finding_with_its_fix(fact, verdict, words):
    """A pass names the loaded models; a warning names the processes and the command that ends them."""
    (finding,) = assess_ollama(fact)
    assert finding.verdict is Verdict(verdict)
    assert words in f"{finding.found} {finding.why} {finding.fix}"
    assert bool(finding.fix) == (verdict != "pass")


def test_a_machine_without_ollama_has_no_line():
    assert list(assess_ollama(Ollama(url=URL))) == []


def test_orphans_are_reported_next_to_a_healthy_server():
    """A restarted server does not know the processes of the previous one."""
    both = attrs.evolve(FINE, runners=Runners((7,), (8,), 1), held={7: GIB, 8: GIB})
    assert [each.verdict for each in assess_ollama(both)] == [Verdict.WARN, Verdict.PASS]


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
    """Server and runners are recognised; clients and editors are not."""
    assert kind_of(tuple(words.split())) == kind


def test_a_runner_belongs_to_the_server_that_is_its_parent():
    """A runner that init adopted has no server; one with an unknown parent is not reported."""
    serve, runner = ("ollama", "serve"), ("ollama", "runner", "--model", "/m")
    processes = [Process(2, 1, serve), Process(3, 2, runner), Process(4, 1, runner), Process(5, 99, runner)]
    assert runners_in(processes) == Runners((3,), (4,), 1)


def test_a_runner_whose_parent_cannot_be_read_is_no_orphan():
    """Its server may be another user's with a hidden command line: no advice may end its process."""
    runner = Process(11, 10, ("ollama", "runner"))
    assert runners_in([Process(10, 1, ()), runner]) == Runners()
    adopted = Process(11, 1, ("ollama", "runner"))
    assert runners_in([Process(1, 0, ()), adopted]).orphans == (11,)
    renamed = Process(10, 1, ("/opt/ollama-0.17", "serve"))
    assert runners_in([renamed, runner]) == Runners()
    user_manager = Process(10, 1, ("/lib/systemd/systemd", "--user"))
    assert runners_in([user_manager, runner]).orphans == (11,)


@attrs.define(eq=False)
class OtherOllama(FakeDaemon):
    """An Ollama next to LLMKube's engines.

    Attributes:
        moved: Whether it listens elsewhere.
        odd: Response of another program at its port.
    """

    moved: bool = False
    odd: bytes | None = None

    def put(self, name):
        """Load a model for another client."""
        self._next_pid += 1
        self.loaded[name] = self._next_pid
        self.held[self._next_pid] = (LIBRARY_BLOB, self.pid)

    async def footprints(self, pids):
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(pids, GIB)

    async def handle(self, exchange):
        if self.odd is not None:
            await exchange.respond(Response(200, NO_HEADERS, self.odd))
        else:
            await FakeDaemon.handle(self, exchange)

    async def probe(self):
        """Return what doctor finds."""
        listener = MemoryListener()

        async def connect(host, port):
            if not self.answers or self.moved:
                await trio.lowlevel.checkpoint()
                raise ConnectionRefusedError(111, "Connection refused")
            return await listener.connect(host, port)

        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_server, self.handle, [listener], limits=Limits(drain_seconds=0.1)))
            found = await inspect_ollama(HttpClient(connect), URL, self)
            nursery.cancel_scope.cancel(reason="probed")
        return found


async def assessed(fake):
    """Return the verdicts of one probe, and their text."""
    findings = list(assess_ollama(await fake.probe()))
    return [each.verdict.value for each in findings], " ".join(f"{each.found} {each.fix}" for each in findings)


async def test_a_day_of_an_ollama(autojump_clock):
    """Load, unload, upgrade, kill and restart each give the right findings."""
    fake = OtherOllama()
    fake.put("a:latest")
    fake.put("b:latest")
    assert await assessed(fake) == (["pass"], f"0.17.4 at {URL}; 2 models loaded, 2.0 GiB: a:latest, b:latest ")
    fake.drop("b:latest")
    assert (await assessed(fake))[0] == ["pass"]
    fake.stop()
    assert await assessed(fake) == ([], "")  # TERM ends its runners too
    fake.start("0.18.0")
    assert await assessed(fake) == (["pass"], f"0.18.0 at {URL}; 0 models loaded ")
    fake.put("a:latest")
    fake.stop(killed=True)
    verdicts, words = await assessed(fake)
    assert verdicts == ["warn"]
    assert "`kill 203`" in words
    fake.start()
    fake.put("a:latest")
    assert (await assessed(fake))[0] == ["warn", "pass"]  # the orphan stays next to the reloaded model
    del fake.held[203]
    assert (await assessed(fake))[0] == ["pass"]


async def test_an_unload_that_was_acknowledged_and_not_done_is_reported(autojump_clock):
    """The process still exists at the second sample."""
    fake = OtherOllama()
    fake.put("a:latest")
    fake.lies = True
    fake.drop("a:latest")
    verdicts, words = await assessed(fake)
    assert verdicts == ["warn"]
    assert "lists 0 models, but 1 of its processes holds 1.0 GiB (pid 201)" in words


async def test_process_that_is_about_to_end_is_not_reported(autojump_clock):
    """A process ends a moment after its model is unlisted."""
    fake = OtherOllama(lag_seconds=1.0)
    fake.put("a:latest")
    fake.drop("a:latest")
    assert (await assessed(fake))[0] == ["pass"]


async def test_a_server_that_does_not_answer_where_it_is_asked_is_reported(autojump_clock):
    """Its port was changed, or it hangs; its processes show that it runs."""
    fake = OtherOllama(moved=True)
    fake.put("a:latest")
    verdicts, words = await assessed(fake)
    assert verdicts == ["warn"]
    assert f"does not answer at {URL}" in words
    assert "OLLAMA_HOST=" in words


@pytest.mark.parametrize("odd", [b"", b"Ollama is running", b"[]", b'{"version": 1}', b'{"version": "1"}', b"\xff"])
async def test_another_program_at_its_port_is_no_ollama(autojump_clock, odd):
    fake = OtherOllama(hidden=True, odd=odd)
    assert await assessed(fake) == ([], "")


async def test_hanging_server_is_reported_in_time(autojump_clock):
    """The finding comes within the time limit of a probe."""
    fake = OtherOllama(hangs=True)
    with trio.fail_after(8):
        assert (await assessed(fake))[0] == ["warn"]


@pytest.mark.parametrize(
    ("value", "url"),
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
def test_the_address_comes_from_its_own_variable(value, url):
    """It is read as the client reads it; loopback replaces a wildcard address."""
    assert daemon_url({"OLLAMA_HOST": value}) == url
