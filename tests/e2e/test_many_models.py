"""Eight models on a real `llmkube up` with memory for three, its clients, and SIGKILL of engines and of the program."""

import random
from contextlib import asynccontextmanager, suppress
from functools import partial

import psutil
import pytest
import trio

from e2e.many_models import MEMORY, MODELS, Verdict, ask, keep_asking, manifests
from e2e.up_process import command_line, engines_in, open_program, proxies_in
from free_ports import free_port
from lengths import MANY_CLIENTS, MANY_SECONDS
from llmkube.base.http.client import open_http_client
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

RESTART_SECONDS = 60.0
"""Time in which a program that was killed answers again."""


class Machine:
    """A `llmkube up` that starts again with its state whenever it has ended, as under systemd."""

    def __init__(self, folder):
        self.folder, self.state, self.port = folder, folder / "state", free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.up = None
        self.kills = []  # (what, when it was killed, until when its requests may fail)
        for name in ("home", "models"):
            (folder / name).mkdir()
        written = [manifests(model, model.write(folder / "models")) for model in MODELS]
        (folder / "all.yaml").write_text("---".join(written))
        share = MEMORY / psutil.virtual_memory().total
        ports = ("--api-port", "0", "--probe-port", "0", "--gateway-port", str(self.port))
        self.flags = (
            "--state-dir",
            str(self.state),
            *ports,
            "--log-level",
            "info",
            "--memory-fraction",
            f"{share:.6f}",
        )
        self.flags += ("--allow-local-sources", str(folder / "models"))

    async def run(self, task_status):
        """Run it for ever."""
        files = ("-f", str(self.folder / "all.yaml"))
        while True:
            async with open_program(self.folder, "up", *self.flags, *files) as up:
                await up.urls()
                self.up, files = up, ()
                if self.kills:
                    self.kills[-1] = (*self.kills[-1][:2], trio.current_time())
                else:
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                await up.process.wait()

    async def kill_engine(self, rng):
        """Kill one of the engines."""
        engine = rng.choice(engines_in(self.state))
        words = command_line(engine)
        with suppress(psutil.NoSuchProcess):
            self.kills.append((words[words.index("--alias") + 1], trio.current_time(), trio.current_time()))
            engine.kill()

    async def kill_program(self, _rng):
        """Kill the program, and wait until the next one answers."""
        self.kills.append(("up", trio.current_time(), float("inf")))
        self.up.process.kill()
        with trio.fail_after(RESTART_SECONDS):
            while self.kills[-1][2] == float("inf"):
                await trio.sleep(0.05)

    def excused(self, answer):
        """Whether something that it needed was killed during a request."""
        return any(
            what in ("up", answer.model) and answer.began <= until and answer.ended >= at
            for what, at, until in self.kills
        )


@asynccontextmanager
async def open_machine(folder):
    """Run a machine, and end its processes."""
    machine = Machine(folder)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(machine.run)
            yield machine
            nursery.cancel_scope.cancel(reason="the test has ended")
    finally:
        for process in [*engines_in(folder), *proxies_in(folder)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


async def test_no_answer_is_cut_or_wrong(tmp_path):
    """Clients of more models than fit get right answers; errors are for requests whose engine or gateway was killed."""
    answers, rng = [], random.Random(1)
    async with open_machine(tmp_path) as machine, open_http_client() as http, trio.open_nursery() as clients:
        for model in MODELS:  # each is known, and answers by itself
            await machine.up.wait_for("out", f"default/{model.name}: (Ready|Idle)")
            assert (await ask(http, machine.url, model, stream=False)).text == model.answer
        for seed in range(MANY_CLIENTS):
            clients.start_soon(partial(keep_asking, machine.url, seed, answers))
        ends, kills = trio.current_time() + MANY_SECONDS, 0
        while trio.current_time() < ends or kills < 3:
            count = len(answers)
            await until(lambda count=count: len(answers) >= count + 2 * MANY_CLIENTS)
            await (machine.kill_program if kills % 3 == 1 else machine.kill_engine)(rng)
            kills += 1
        for model in MODELS:
            assert (await ask(http, machine.url, model, stream=True)).text == model.answer
        clients.cancel_scope.cancel(reason="seen enough")
    assert not [each for each in answers if each.verdict is Verdict.WRONG]
    lost = [each for each in answers if each.verdict is not Verdict.RIGHT and not machine.excused(each)]
    assert not lost, (machine.kills, machine.up.err[-5000:])
