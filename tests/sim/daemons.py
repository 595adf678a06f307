"""The engines whose daemons services share, and which of them a command line is a front before."""

from sim.daemon import Daemons
from sim.daemon_ollama import Ollama
from sim.daemon_omlx import Omlx

ENGINES = (Ollama, Omlx)
RUNTIMES = tuple(engine().runtime for engine in ENGINES)


def daemons_of_a_host():
    """All of them on one host, by runtime."""
    return {engine().runtime: Daemons(engine()) for engine in ENGINES}


def runtime_of(argv):
    """The runtime of a front, by its command line; "" of any other engine."""
    return next((engine().runtime for engine in ENGINES if engine().module in argv), "")


def is_front(argv):
    """Whether a command line is that of a service on a shared daemon."""
    return bool(runtime_of(argv))
