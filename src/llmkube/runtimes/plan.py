"""A plan is what to run as a value, with slots for what only the host knows: program, model path, address, port."""

import hashlib
import json
import sys
from enum import StrEnum
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.weights.estimate.demand import Demand

UNLOAD_LEFT: Final = "--unload-left"
"""Added to the command line of a service: nothing is served, and what an engine of it has left that was killed is
unloaded. Exits with 0 when nothing of that is loaded any more."""


class PlanError(UserError):
    """The objects ask for something that no engine on this path can run; `field` says where."""


class Placeholder(StrEnum):
    """A place in argv that is filled at launch. A plain string of a user's with the same text is none.

    On a host the supervisor fills program, model, host, port and keys (the file with the keys that clients have to
    show) and
    wrapper (a file of ours that the program reads). In a pod the renderer fills model (the file, or the
    folder, that the engine is given), folder (the one that model lies in), draft (the model of a second Model, for
    guessing ahead) and cache (a folder that the engine may write to).
    """

    PROGRAM = "{program}"
    MODEL = "{model}"
    HOST = "{host}"
    PORT = "{port}"
    KEYS = "{keys}"
    FOLDER = "{folder}"
    DRAFT = "{draft}"
    CACHE = "{cache}"
    WRAPPER = "{wrapper}"


@attrs.frozen
class EngineInfo:
    """One engine program as it describes itself.

    Attributes:
        program: What is run.
        version: Its build.
        flags: Those that it knows, as far as it has been asked.
        switches: Those of them that take no value.
        wrapper: A file of ours that goes before its own arguments; "" where it needs none.
        front: The command of the program of ours that runs for each service of a shared daemon; () where none does.
    """

    program: str
    version: str
    flags: frozenset[str]
    switches: frozenset[str] = frozenset()
    wrapper: str = ""
    front: tuple[str, ...] = ()


def front_words(runtime: str) -> tuple[str, ...]:
    """Return what the command line of a service on a shared daemon begins with in its plan; `front` runs in its place.

    It is the command of earlier versions: digests and journals keep it, so that no upgrade restarts an engine.
    """
    return (sys.executable, "-m", f"llmkube.cli.daemon_engine.{runtime}.program")


@attrs.frozen
class LaunchPlan:
    """A process to run for one InferenceService.

    Attributes:
        argv: The command line, with `Placeholder` members where the host fills in.
        env: Variables to add to the engine's environment, in the user's order.
        runtime: The engine family (`llamacpp`).
        alias: The model id that the engine answers to.
        weights_identity: Changes when the weights' bytes may have changed.
        ready_path: GET it: 200 means loaded and able to answer.
        not_honoured: Paths of fields that were given but have no effect on this path.
        demand: What decides the memory that it needs, read from argv; None where it cannot be estimated.
        keys_digest: Tells which API keys of clients it takes, without telling them; "" when it takes none of theirs.
        restarted_at: When a user asked last that it be started anew, as text; "" when that was never asked.
        weights_format: The Model's when it was planned; "" of what an earlier release has planned.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    runtime: str
    alias: str
    weights_identity: str = ""
    ready_path: str = "/health"
    not_honoured: tuple[str, ...] = ()
    demand: Demand | None = None
    keys_digest: str = ""
    restarted_at: str = ""
    weights_format: str = attrs.field(default="", eq=False)

    def render(self, engine: EngineInfo, *, model: str, host: str, port: int, keys: str) -> tuple[str, ...]:
        """Return argv as this engine is started, with every slot filled."""
        fill = {
            Placeholder.PROGRAM: engine.program,
            Placeholder.MODEL: model,
            Placeholder.HOST: host,
            Placeholder.PORT: str(port),
            Placeholder.KEYS: keys,
            Placeholder.WRAPPER: engine.wrapper,
        }
        argv = (*engine.front, *self.argv[len(front_words(self.runtime)) :]) if engine.front else self.argv
        return tuple(fill[arg] if isinstance(arg, Placeholder) else arg for arg in argv)

    @property
    def mode(self) -> str:
        """What the engine is started for: `chat`, `embedding` or `rerank`."""
        return "rerank" if "--reranking" in self.argv else "embedding" if "--embedding" in self.argv else "chat"

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that a running engine would have to be restarted for.

        Program, host, port and model path are slots, so another port is not another plan; the order of environment
        variables and the list of fields without effect do not count.
        """
        argv = [[arg.name] if isinstance(arg, Placeholder) else arg for arg in self.argv]
        facts = [
            self.runtime,
            argv,
            sorted(self.env),
            self.weights_identity,
            *filter(None, [self.keys_digest, self.restarted_at]),
        ]
        return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()
