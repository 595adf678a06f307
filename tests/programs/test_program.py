import ctypes
import gc
import os
import signal
import subprocess
import sys

import pytest
import trio

from free_ports import free_port
from llmkube.base.http.listen import PortTakenError
from llmkube.cli.commands.programs.controller import EVERY_ADDRESS
from llmkube.programs.program import (
    Stop,
    check_ports,
    freeze_heap,
    open_optional_port,
    open_port,
    open_service_nursery,
    run_until_signal,
)
from waiting import until


async def test_a_stop_ends_the_innermost_scope_only():
    """The code around the innermost `scope` continues, and ends in its own order."""
    stop, order = Stop(), []
    with stop.scope():
        async with open_service_nursery() as outer:

            async def support():
                try:
                    await trio.sleep_forever()
                finally:
                    order.append("support")

            outer.start_soon(support)
            with stop.scope():
                outer.start_soon(trio.sleep, 0)
                stop.request_nowait("SIGTERM")
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            order.append("inner")
        order.append("outer")
    assert order == ["inner", "support", "outer"]


async def test_a_scope_after_the_stop_does_not_start():
    """A stop during the start is not forgotten when the next layer opens."""
    stop = Stop()
    stop.request_nowait("SIGINT")
    reached = False
    with stop.scope():
        await trio.lowlevel.checkpoint()
        reached = True
    assert not reached


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_signal_stops_and_the_second_is_answered(number):
    """Each kind of signal stops; a second one during the stop is reported and changes nothing."""
    reported, cleaned = [], False

    async def body(stop):
        nonlocal cleaned
        with stop.scope():
            os.kill(os.getpid(), number)
            await trio.sleep_forever()
        version = len(reported)
        os.kill(os.getpid(), number)
        await until(lambda: len(reported) > version)
        cleaned = True
        return "done"

    result = await run_until_signal(body, reported.append)
    assert cleaned
    assert result == "done"
    assert reported == [f"{number.name}: stopping", f"{number.name}: already stopping; waiting for the engines to exit"]


async def test_a_signal_before_the_innermost_scope_ends_the_body():
    """During the start of the outer layers a signal ends everything, and the body has no result."""

    async def body(stop):
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    assert await run_until_signal(body, lambda _line: None) is None


async def test_a_body_that_returns_ends_the_program():
    """Without a signal the result is returned, and the signal handlers are restored."""
    before = signal.getsignal(signal.SIGTERM)

    async def body(stop):
        await trio.lowlevel.checkpoint()
        return 7

    assert await run_until_signal(body, print) == 7
    assert signal.getsignal(signal.SIGTERM) is before


async def test_the_controllers_port_is_open_to_both_families():
    """Probes reach the controller also in clusters of IPv6 alone."""
    there = await trio.open_tcp_listeners(0)
    for listener in there:
        await listener.aclose()
    number = free_port()
    async with open_optional_port(number, "--port", EVERY_ADDRESS) as port:
        assert {one.socket.family for one in port.listeners} == {one.socket.family for one in there}
        assert {one.socket.getsockname()[1] for one in port.listeners} == {number}


async def test_a_taken_port_names_its_flag():
    """A port of another program is an error that names the flag; 0 gives a free one."""
    async with open_port(0, "--gateway-port") as port:
        number = int(port.url.rpartition(":")[2])
        with pytest.raises(PortTakenError, match=f"--api-port: .*{number}"):
            async with open_port(number, "--api-port"):
                pass
    async with open_port(number, "--api-port"):
        pass


async def test_all_taken_ports_are_named_at_once():
    """Each has its flag and the program that listens there."""
    async with open_port(0, "--a") as one, open_port(0, "--b") as two:
        numbers = [int(port.url.rpartition(":")[2]) for port in (one, two)]
        with pytest.raises(PortTakenError) as caught:
            await check_ports({"--api-port": numbers[0], "--gateway-port": numbers[1], "--probe-port": 0})
    for number, flag in zip(numbers, ("--api-port", "--gateway-port"), strict=True):
        assert f"port {number} ({flag}) is in use by " in str(caught.value)
    assert str(caught.value).count(f"(pid {os.getpid()})") == 2


async def test_a_second_loopback_address_has_the_same_port():
    """Clients that resolve localhost to ::1 reach the gateway; a program that has the port there is an error."""
    async with open_port(0, "--gateway-port", also="::1") as port:
        assert {one.socket.getsockname()[0] for one in port.listeners} == {"127.0.0.1", "::1"}
        (number,) = {one.socket.getsockname()[1] for one in port.listeners}
        assert port.url == f"http://127.0.0.1:{number}"
    async with open_port(number, "--listen", "::1"):
        with pytest.raises(PortTakenError, match=rf"--gateway-port: cannot listen on \[::1\]:{number}"):
            async with open_port(number, "--gateway-port", also="::1"):
                pass


async def test_a_machine_without_the_second_address_listens_on_the_first():
    """2001:db8::1 is an address that no machine has (RFC 3849)."""
    async with open_port(0, "--gateway-port", also="2001:db8::1") as port:
        assert [one.socket.getsockname()[0] for one in port.listeners] == ["127.0.0.1"]


async def test_port_0_may_mean_none():
    """Where 0 turns a server off, no port is opened."""
    async with open_optional_port(0, "--port") as port:
        assert port is None


def test_loaded_modules_are_frozen_for_the_garbage_collector():
    thresholds, loaded = gc.get_threshold(), []
    assert any(one is loaded for one in gc.get_objects())  # the objects that the collector scans
    try:
        freeze_heap()
        assert all(one is not loaded for one in gc.get_objects())
        assert gc.get_threshold()[0] > 1000
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's alone")
def test_free_memory_below_used_memory_is_returned_to_the_kernel():
    """Of 40 MiB that were freed below a used block, nearly all are returned."""
    code = (
        "import os\n"
        "from llmkube.programs.program import trim_heap\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE') >> 20\n"
        "pieces = [bytes(10_000) for _ in range(4000)]\n"
        "stays, pieces[:] = pieces[-1], []\n"
        "before = resident()\n"
        "trim_heap()\n"
        "print(before - resident())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 30


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's alone")
def test_memory_that_threads_have_freed_is_returned_to_the_kernel():
    """Of 45 MiB that six threads held at the same time, nearly nothing is left."""
    code = (
        "import os, threading\n"
        "from llmkube.programs.program import trim_heap, use_one_heap\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE') >> 20\n"
        "use_one_heap()\n"
        "large = bytes(16 << 20)\n"
        "del large  # from now on glibc keeps up to 32 MiB at the top of each heap\n"
        "before, all_hold = resident(), threading.Barrier(6)\n"
        "def hold():\n"
        "    pieces = [bytes(10_000) for _ in range(800)]\n"
        "    all_hold.wait()\n"
        "threads = [threading.Thread(target=hold) for _ in range(6)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "trim_heap()\n"
        "print(resident() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 10


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"), [(256, 4096, 4096), (256, 20_000, 10_240), (15_000, 20_000, 15_000), (256, 256, 256)]
)
def test_the_descriptor_limit_is_raised_as_far_as_permitted(soft, hard, wanted):
    """From launchd's 256 to 10,240, or to the user's hard limit; it is never lowered."""
    code = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from llmkube.programs.program import raise_descriptor_limit\n"
        "raise_descriptor_limit()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(wanted), str(hard)]


async def test_an_ipv6_address_has_brackets_wherever_it_has_a_port():
    """The URL can be pasted into a client, and the error has the address in the form of `--listen`."""
    async with open_port(0, "--listen", "::1") as port:
        number = port.listeners[0].socket.getsockname()[1]
        assert port.url == f"http://[::1]:{number}"
        with pytest.raises(PortTakenError, match=rf"--listen: cannot listen on \[::1\]:{number}: another program"):
            async with open_port(number, "--listen", "::1"):
                pass
