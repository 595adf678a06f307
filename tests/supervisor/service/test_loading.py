import attrs
import trio

from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.process.host_runtimes import log_reader_of
from llmkube.supervisor.service.loading import LoadProgress
from llmkube.supervisor.values.liveness import EngineStats

GIGABYTE = 1 << 30


class EngineStatus:
    """A recorder of reports and their times."""

    def __init__(self):
        self.reported = []

    def set_reason(self, reason, message):
        self.reported.append((trio.current_time(), reason, message))


class Child:
    """A child with one last line."""

    line = "llama_model_loader: loaded meta data"

    async def last_lines(self, count):
        await trio.lowlevel.checkpoint()
        return (self.line,)


async def test_progress_is_reported_when_it_changes_and_seldom(autojump_clock):
    """A phase or a percentage that changed is reported after five seconds, and the time alone after thirty."""
    status, child = EngineStatus(), Child()
    line, look, start = (
        LoadProgress(child, status, 8 * GIGABYTE, log_reader_of("llamacpp")),
        EngineStats("S", 1.0),
        trio.current_time(),
    )
    for tick in range(40):
        await trio.sleep(2)
        if tick == 10:
            child.line = "load_tensors: loading model tensors, this can take a while..."
        look = attrs.evolve(look, log_bytes=tick // 10, resident_bytes=min(tick, 5) * GIGABYTE)
        await line.write(look)
    times = [moment - start for moment, _, _ in status.reported]
    assert times == [6, 12, 22, 52]
    assert {reason for _, reason, _ in status.reported} == {Reason.LOADING}
    messages = [message for _, _, message in status.reported]
    assert messages[0] == "reading the model's header, 25 % in memory, for 6 s so far"
    assert messages[-1] == "loading tensors, 62 % in memory, for 52 s so far"


async def test_an_engine_without_known_log_lines_is_loading_the_model(autojump_clock):
    """Without known log lines and with a small file the message still names the phase."""
    status, child = EngineStatus(), Child()
    child.line = "hello"
    line = LoadProgress(child, status, 1000, log_reader_of("llamacpp"))
    await trio.sleep(7)
    await line.write(EngineStats("S", 1.0))
    assert status.reported[0][2] == "loading the model, for 7 s so far"
