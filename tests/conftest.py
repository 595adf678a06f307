"""How the whole suite draws its examples: by chance at a desk, always the same in CI (where `CI` is set).

And with which signals it begins: a shell's background job has SIGINT ignored and nohup SIGHUP, which the programs under
test would inherit.
"""

import os
import signal

from hypothesis import HealthCheck, settings

# Deadlines judge the machine and not the code; examples that take long to draw are what the simulations are.
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("desk"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
