import trio

from http_lab import MemoryListener
from llmkube.base.http import ConnectError, Response, open_http_client, run_server
from llmkube.supervisor import health


class Engine:
    """An engine's HTTP side: what it answers is a field."""

    def __init__(self):
        self.listener = MemoryListener()
        self.status = 503
        self.delay_seconds = 0.0
        self.listening = True
        self.asked = 0

    async def connect(self, host, port):
        await trio.lowlevel.checkpoint()
        if not self.listening:
            raise ConnectionRefusedError(111, "refused")
        return await self.listener.connect(host, port)

    async def answer(self, exchange):
        self.asked += 1
        await trio.sleep(self.delay_seconds)
        await exchange.respond(Response.json(self.status, {}))


URL = "http://127.0.0.1:1/health"


async def test_readiness_is_noticed_soon(autojump_clock):
    """An engine that gets ready is believed within the poll's cap, and not before it answers 200."""
    engine = Engine()
    async with open_http_client(engine.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, engine.answer, [engine.listener])

        async def load():
            await trio.sleep(30)
            engine.status = 200

        nursery.start_soon(load)
        await health.wait_ready(http, URL)
        assert 30 <= trio.current_time() <= 30 + 2 * health.POLL_CAP_SECONDS
        nursery.cancel_scope.cancel()


async def test_an_engine_that_accepts_and_never_answers_does_not_hang_the_caller(autojump_clock):
    """Each question has a deadline of its own, so that the caller's is kept."""
    engine = Engine()
    engine.delay_seconds = 1e9
    async with open_http_client(engine.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, engine.answer, [engine.listener])
        with trio.move_on_after(60) as deadline:
            await health.wait_ready(http, URL)
        assert deadline.cancelled_caught
        assert engine.asked > 5
        nursery.cancel_scope.cancel()


async def test_a_busy_engine_stays_in_service(autojump_clock):
    """Late answers and answers of 503 take nobody out of service, for however long."""
    engine, changes = Engine(), []
    engine.delay_seconds = 20
    async with open_http_client(engine.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, engine.answer, [engine.listener])
        nursery.start_soon(health.watch, http, URL, changes.append)
        await trio.sleep(3600)
        assert changes == []
        nursery.cancel_scope.cancel()


async def test_a_port_that_nobody_listens_on_takes_the_engine_out_of_service(autojump_clock):
    """Two refused connections in a row mean not ready; one 200 means ready again."""
    engine, changes = Engine(), []
    engine.status = 200
    async with open_http_client(engine.connect) as http, trio.open_nursery() as nursery:
        await nursery.start(run_server, engine.answer, [engine.listener])
        nursery.start_soon(health.watch, http, URL, changes.append)
        await trio.sleep(15)
        engine.listening = False
        await http.aclose()
        await trio.sleep(2 * health.WATCH_SECONDS + 1)
        assert changes == [False]
        engine.listening = True
        await trio.sleep(health.WATCH_SECONDS + 1)
        assert changes == [False, True]
        nursery.cancel_scope.cancel()


async def test_a_refused_connection_is_gone(autojump_clock):
    """Nobody at the port is a different answer from a busy engine."""

    async def refuse(host, port):
        await trio.lowlevel.checkpoint()
        raise ConnectError("refused")

    async with open_http_client(refuse) as http:
        assert await health.ask(http, URL) == "gone"
