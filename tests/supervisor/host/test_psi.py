import socket
import sys
from pathlib import Path

import pytest
import trio

from llmkube.supervisor.host.psi import Pressure, open_alarm, open_triggers, parse_pressure, read_pressure

PRESSURE = """\
some avg10={some} avg60=0.12 avg300=0.34 total=190329302
full avg10={full} avg60=0.03 avg300=0.18 total=53186261
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_pressure_is_read(tmp_path):
    """Both averages over ten seconds are found, in the first file that is there; without any there is no pressure."""
    file = tmp_path / "memory"
    file.write_text(PRESSURE.format(some="12.50", full="3.01"))
    assert read_pressure([tmp_path / "missing", file]) == Pressure(12.5, 3.01)
    assert read_pressure([tmp_path / "missing"]) == Pressure()


@pytest.mark.parametrize("text", ["", "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n", "some avg10=x full avg10=y "])
def test_half_a_pressure_file_is_an_error(text):
    """A file with only one of the lines says nothing."""
    with pytest.raises(ValueError, match="no pressure"):
        parse_pressure(text)


@linux
async def test_an_exceptional_condition_wakes():
    """Trio's loop, which waits for reading only, is woken by what a trigger raises; urgent data raises the same."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        receiver, _ = server.accept()
        with receiver, open_alarm([receiver.fileno()]) as wait:
            client.send(b"ordinary")
            with trio.move_on_after(0.2) as scope:
                await wait()
            assert scope.cancelled_caught
            client.send(b"!", socket.MSG_OOB)
            with trio.fail_after(60):
                await wait()


@linux
def test_leaving_gives_back_the_triggers():
    """No descriptor stays open after the context."""

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    with open_triggers([Path("/proc/pressure/memory"), Path("/proc/pressure/nothing")]):
        pass
    assert descriptors() == before
