"""The engines with shared daemons, and the front's engine by its command line."""

from sim.daemon import Daemons
from sim.daemon_ollama import Ollama
from sim.daemon_omlx import Omlx

ENGINES = (Ollama, Omlx)
MODULES = {engine().runtime: engine().module for engine in ENGINES}
RUNTIMES = tuple(MODULES)


def daemons_of_a_host():
    """Return the daemons of one host, by runtime."""
    return {engine().runtime: Daemons(engine()) for engine in ENGINES}


def runtime_of(argv):
    """Return the runtime of a front by its command line; "" for any other engine."""
    return next((runtime for runtime, module in MODULES.items() if module in argv), "")


def is_front(argv):
    """Return whether a command line is that of a front of a shared daemon."""
    return bool(runtime_of(argv))
