"""Eight models with memory for three, at a real `llmkube up` and at an agent's door, and SIGKILL of each program."""

import random
from contextlib import asynccontextmanager, suppress
from functools import partial

import psutil
import pytest
import trio
import yaml

from e2e.many_models import MEMORY, MODELS, Verdict, ask, keep_asking, manifests
from e2e.separate_programs import endpoint_of, eventually, open_cluster
from e2e.up_process import command_line, doors_in, engines_in, has_ended, is_open, open_program, proxies_in
from free_ports import free_port
from lengths import MANY_CLIENTS, MANY_SECONDS
from llmkube.base.http.client import open_http_client
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.resource import Key
from llmkube.programs.server_side_apply import Applier, Manifest
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

RESTART_SECONDS = 60.0
"""Time in which a program that was killed answers again."""


class Machine:
    """A program that starts again with its state whenever it has ended, as under systemd.

    Attributes:
        state: Its state directory.
        program: The running program.
        urls: The address at which each model is asked.
        kills: Name of a model or "" for all, when it was killed, and until when its requests may fail.
    """

    def __init__(self, folder, state):
        self.folder, self.state, self.program, self.urls, self.kills = folder, state, None, {}, []
        (folder / "models").mkdir()
        self.manifests = "---".join(manifests(model, model.write(folder / "models")) for model in MODELS)
        share = MEMORY / psutil.virtual_memory().total
        self.flags = ("--memory-fraction", f"{share:.6f}", "--allow-local-sources", str(folder / "models"))

    async def kill_engine(self, rng):
        """Kill one of the engines, and wait until it has closed its connections: until then it may get a request."""
        running = [(each, command_line(each)) for each in engines_in(self.state)]
        engine, words = rng.choice([each for each in running if each[1]])  # without those that have just ended
        model, at = words[words.index("--alias") + 1], trio.current_time()
        again = any(each == model for each, _, _ in self.kills)  # a second failure in a row has a back-off
        with suppress(psutil.NoSuchProcess):
            engine.kill()
        await until(lambda: has_ended(engine))
        self.kills.append((model, at, trio.current_time() + again * RESTART_SECONDS))

    async def kill_program(self, _rng):
        """Kill the program, and wait until the next one runs."""
        before = self.program
        before.process.kill()
        with trio.fail_after(RESTART_SECONDS):
            await until(lambda: self.program is not before)

    def excused(self, answer):
        """Whether something that it needed was killed during a request, or it was refused after its time in a queue."""
        is_late = answer.verdict is Verdict.REFUSED and "queue_full" in answer.text
        return is_late or any(
            what in ("", answer.model) and answer.began <= until and answer.ended >= at
            for what, at, until in self.kills
        )


class Up(Machine):
    """`llmkube up`: while its gateway is away, requests fail."""

    def __init__(self, folder):
        super().__init__(folder, folder / "state")
        port = free_port()
        self.urls = dict.fromkeys(MODELS, f"http://127.0.0.1:{port}")
        (folder / "home").mkdir()
        (folder / "all.yaml").write_text(self.manifests)
        self.flags += ("--state-dir", str(self.state), "--gateway-port", str(port), "--log-level", "info")

    async def run(self, task_status):
        """Run it for ever."""
        files = ("-f", str(self.folder / "all.yaml"))
        while True:
            ports = ("--api-port", "0", "--probe-port", "0")
            async with open_program(self.folder, "up", *self.flags, *ports, *files) as up:
                await up.urls()
                for model in MODELS if files else ():
                    await up.wait_for("out", f"default/{model.name}: (Ready|Idle)")
                self.program, files = up, ()
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await up.process.wait()

    async def kill_program(self, rng):
        """Kill the program."""
        at = trio.current_time()
        self.kills.append(("", at, float("inf")))
        await super().kill_program(rng)
        self.kills[-1] = ("", at, trio.current_time())

    kinds = (Machine.kill_engine, kill_program, Machine.kill_engine)


class Host(Machine):
    """`llmkube agent`: its door holds what comes while it is away."""

    def __init__(self, cluster, address):
        super().__init__(cluster.folder, cluster.folder / "agent")
        self.cluster, self.address = cluster, address

    async def run(self, task_status):
        """Run it for ever."""
        objects = [Manifest("all.yaml", each) for each in yaml.safe_load_all(self.manifests)]
        applied = await Applier(self.cluster.client).apply_all(objects, lambda _: None)
        assert not any(each.error for each in applied), applied
        while True:
            flags = ("--activation", "OnRequest", *self.flags)
            async with self.cluster.open_agent(self.address, *flags, kills=False) as self.program:
                for model in MODELS:
                    self.urls[model] = await self._url(model)
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await self.program.process.wait()

    async def _url(self, model):
        async def read():
            return endpoint_of(await self.cluster.client.get(EndpointSlice, Key("default", f"{model.name}.box")))

        _, host, port = await eventually(read, lambda found: found[0])
        return f"http://{host}:{port}"

    async def kill_door(self, _rng):
        """Kill the door, and wait until the next one has its ports."""
        (door,) = doors_in(self.state)
        at = trio.current_time()
        self.kills.append(("", at, float("inf")))
        door.kill()
        with trio.fail_after(RESTART_SECONDS):
            await until(lambda: doors_in(self.state) not in ([door], []))  # its ports stay open while it exits
            await until(lambda: all(map(is_open, self.urls.values())))
        self.kills[-1] = ("", at, trio.current_time())

    kinds = (Machine.kill_engine, Machine.kill_program, kill_door)


@asynccontextmanager
async def running(machine):
    """Run a machine, and end its processes."""
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(machine.run)
            yield machine
            nursery.cancel_scope.cancel(reason="the test has ended")
    finally:
        for process in [*engines_in(machine.folder), *proxies_in(machine.folder), *doors_in(machine.folder)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


async def test_no_answer_of_a_gateway_is_cut_or_wrong(tmp_path):
    """Clients of more models than fit get right answers; errors are for requests whose engine or gateway was killed."""
    async with running(Up(tmp_path)) as machine:
        await play(machine)


async def test_no_answer_of_a_door_is_cut_or_wrong(tmp_path, address):
    """As above; without their agent, requests are answered or held."""
    async with open_cluster(tmp_path) as cluster, running(Host(cluster, address)) as machine:
        await play(machine)


async def play(machine):
    """Ask, kill, and check each answer."""
    answers, rng = [], random.Random(1)
    async with open_http_client() as http, trio.open_nursery() as clients:
        for model in MODELS:  # each is known, and answers by itself
            assert (await ask(http, machine.urls[model], model, stream=False)).text == model.answer
        for seed in range(MANY_CLIENTS):
            clients.start_soon(partial(keep_asking, machine.urls, seed, answers))
        ends, kills = trio.current_time() + MANY_SECONDS, 0
        while trio.current_time() < ends or kills < len(machine.kinds):
            count = len(answers)
            await until(lambda count=count: len(answers) >= count + 2 * MANY_CLIENTS)
            await machine.kinds[kills % len(machine.kinds)](machine, rng)
            kills += 1
        for model in MODELS:
            assert (await ask(http, machine.urls[model], model, stream=True)).text == model.answer
        clients.cancel_scope.cancel(reason="seen enough")
    assert not [each for each in answers if each.verdict is Verdict.WRONG]
    lost = [each for each in answers if each.verdict is not Verdict.RIGHT and not machine.excused(each)]
    assert not lost, (machine.kills, machine.program.err[-5000:])
