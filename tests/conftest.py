"""Setup of the whole suite: number of examples, signals, and what runs in parallel.

Tests are distributed one by one (`--dist loadgroup`), those that start real programs first, then those marked `ci`:
they take longest, so that no worker is idle at the end. Real programs mostly wait, so there is one worker more than
there are cores.
"""

import fcntl
import gc
import os
import signal

import psutil
import pytest
import structlog
from hypothesis import HealthCheck, settings

from lengths import EXAMPLES, LENGTHS, omitted
from virtual_clock import virtual_clock

# No deadlines, which would depend on the machine and not on the code, and no check for slow examples, since simulations
# are slow. With `CI` set the examples are always the same.
CI = bool(os.environ.get("CI"))
settings.register_profile(
    "suite",
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=CI,
    print_blob=CI,
)
settings.load_profile("suite")

# By default structlog prints tracebacks with all local variables: for a simulated world these are gigabytes.
for processor in structlog.get_config()["processors"]:
    if isinstance(processor, structlog.dev.ConsoleRenderer):
        processor.exception_formatter = structlog.dev.plain_traceback

# A shell's background job has SIGINT ignored and nohup SIGHUP, which the programs under test would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_xdist_auto_num_workers(config):
    """Use one worker for each core and one more, since real programs are mostly waited for."""
    return (psutil.cpu_count(logical=False) or os.cpu_count() or 1) + 1


def pytest_report_header(config):
    return f"lengths: {LENGTHS} (tests/lengths.py)" + "".join(f", without tests marked {name}" for name in omitted())


# The garbage collector scans the objects of tests, and not all modules and tests each time.
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Leave long tests to `.ci/run` and `make soak`, and put the longest of the others first."""
    for marker in omitted():
        if marker not in config.option.markexpr:
            config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(marker)])
            items[:] = [item for item in items if not item.get_closest_marker(marker)]
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("e2e", "ci")])


@pytest.fixture(autouse=True)
def logs_as_before():
    """Restore the log level: programs that run in this process configure it."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def autojump_clock():
    """Use `virtual_clock` in place of the clock of pytest-trio."""
    return virtual_clock()


@pytest.fixture
def machine_lock(request, tmp_path_factory):
    """Keep tests that inspect every process of this machine apart from the test that opens a port on it."""
    with (tmp_path_factory.getbasetemp().parent / "machine.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if request.node.get_closest_marker("opens_port") else fcntl.LOCK_SH)
        yield
