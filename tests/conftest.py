"""How the whole suite draws its examples: by chance at a desk, always the same in CI (where `CI` is set).

And with which signals it begins: a shell's background job has SIGINT ignored and nohup SIGHUP, which the programs under
test would inherit.

And what may run side by side: everything but the tests that start real programs. Those have deadlines in real time, and
share one worker (`--dist loadgroup`), so that the machine is never asked for two of them at once.
"""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Deadlines judge the machine and not the code; examples that take long to draw are what the simulations are.
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("desk"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.xdist_group("real programs"))
