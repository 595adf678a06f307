"""The engines whose daemons services share, and which of them a command line is a front before."""

from sim.daemon import Daemons
from sim.daemon_ollama import Ollama
from sim.daemon_omlx import Omlx

ENGINES = (Ollama, Omlx)
MODULES = {engine().runtime: engine().module for engine in ENGINES}
RUNTIMES = tuple(MODULES)


def daemons_of_a_host():
    """All of them on one host, by runtime."""
    return {engine().runtime: Daemons(engine()) for engine in ENGINES}


def runtime_of(argv):
    """The runtime of a front, by its command line; "" of any other engine."""
    return next((runtime for runtime, module in MODULES.items() if module in argv), "")


def is_front(argv):
    """Whether a command line is that of a service on a shared daemon."""
    return bool(runtime_of(argv))
