"""The plan of an engine as a value, with placeholders for what only the host knows: program, model, address, port."""

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import attrs

from llmkube.base.errors import UserError
from llmkube.weights.estimate.demand import Demand

UNLOAD_LEFT: Final = "--unload-left"
"""Added to the command line of a service's front process: it serves nothing, but unloads the model that a killed engine
of the service has left loaded in the daemon. Exits with 0 when that is no longer loaded."""


class PlanError(UserError):
    """The objects request something that the engine cannot do; `field` is the path of the request."""


class EngineNotConfiguredError(PlanError):
    """The owner of this host has not configured the engine that a service names."""


class Placeholder(StrEnum):
    """An element of argv that is filled in at launch. A user's plain string with the same text is not a placeholder.

    On a host the supervisor fills program, model, host, port, keys (the file with the API keys of clients) and wrapper
    (a script of ours that the program runs). In a pod the renderer fills model (the file or folder that the engine is
    given), folder (the folder of the model), draft (the model of a second Model, for speculative decoding) and cache (a
    folder that the engine may write to).
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


SLOT: Final = re.compile(r"\{([A-Za-z][\w.-]*)\}", re.ASCII)
"""A placeholder in a `TemplateText`: `{port}`, `{options.threads}`."""


class TemplateText(str):
    """An element of argv from the owner's `config.toml`, with slots; no value that fills one is searched for slots."""

    __slots__ = ()

    def filled(self, values: Mapping[str, str]) -> "TemplateText":
        """Return it with these values in their slots; other slots remain."""
        return TemplateText(SLOT.sub(lambda slot: values.get(slot[1], slot[0]), self))


@attrs.frozen
class EngineInfo:
    """An engine's program as it describes itself.

    Attributes:
        program: Path of the program that is run.
        version: Its build.
        flags: Flags that it knows; empty if it was not queried.
        switches: Flags among them that take no value.
        wrapper: A script of ours, as its first argument; "" if it needs none.
        front: Command of our front process, which runs for each service of a shared daemon; () if it needs none.
    """

    program: str
    version: str
    flags: frozenset[str]
    switches: frozenset[str] = frozenset()
    wrapper: str = ""
    front: tuple[str, ...] = ()


def front_words(runtime: str) -> tuple[str, ...]:
    """Return the first words of a planned command line for a shared daemon; at launch `EngineInfo.front` replaces them.

    This is the command of earlier versions: digests and journals contain it, so a change would restart all engines.
    """
    return (sys.executable, "-m", f"llmkube.cli.daemon_engine.{runtime}.program")


@attrs.frozen
class LaunchPlan:
    """A process to run for one InferenceService.

    Attributes:
        argv: The command line, with `Placeholder` members for the host to fill.
        env: Variables to add to the engine's environment, in the user's order.
        runtime: The engine family (`llamacpp`).
        alias: Model id that the engine accepts.
        weights_identity: Changes when the weights' bytes may have changed.
        ready_path: GET returns 200 when the model is loaded and requests can be answered.
        not_honoured: Paths of fields that are set but have no effect here.
        demand: Settings that determine its memory, read from argv; None if it cannot be estimated.
        keys_digest: Digest of the clients' API keys that it accepts; "" if it accepts none.
        restarted_at: Time of the last restart that a user requested, as text; "" if there was none.
        weights_format: Format of the Model when it was planned; "" in plans of earlier releases.
        adapters: Name and scale of each LoRA adapter, in the order of the engine's numbers; one without a name always
            applies.
        engine: Name of the owner's engine, for the runtime generic.
        program: Its program as its owner wrote it.
        ready_pattern: Regular expression (RE2) that a line of its log must match before it serves; "" for none.
        memory_bytes: Memory that its owner declares; 0 for other runtimes, whose memory is estimated.
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
    adapters: tuple[tuple[str, float], ...] = ()
    engine: str = attrs.field(default="", kw_only=True)
    program: str = attrs.field(default="", kw_only=True)
    ready_pattern: str = attrs.field(default="", kw_only=True)
    memory_bytes: int = attrs.field(default=0, kw_only=True)

    @property
    def engine_key(self) -> str:
        """Name of its program among those of a host: the runtime, or `generic/NAME` for an engine of the owner's."""
        return f"{self.runtime}/{self.engine}" if self.engine else self.runtime

    @property
    def reported_model(self) -> str:
        """Model id in the engine's answers; llama.cpp's server sorts the names of `--alias`, and reports the first."""
        named = self.argv.index("--alias") + 1 if self.runtime == "llamacpp" and "--alias" in self.argv else 0
        return min(self.argv[named].split(",")) if named else self.alias

    def render(self, engine: EngineInfo, *, model: str, host: str, port: int, keys: str) -> tuple[str, ...]:
        """Return argv for the start of this engine, with every placeholder filled."""
        fill = {
            Placeholder.PROGRAM: engine.program,
            Placeholder.MODEL: model,
            Placeholder.HOST: host,
            Placeholder.PORT: str(port),
            Placeholder.KEYS: keys,
            Placeholder.WRAPPER: engine.wrapper,
        }
        argv = (*engine.front, *self.argv[len(front_words(self.runtime)) :]) if engine.front else self.argv
        slots = {"model": model, "host": host, "port": str(port)}
        return tuple(
            fill[arg] if isinstance(arg, Placeholder) else arg.filled(slots) if isinstance(arg, TemplateText) else arg
            for arg in argv
        )

    @property
    def mode(self) -> str:
        """Mode in which the engine is started: `chat`, `embedding` or `rerank`; "" if it is unknown."""
        if self.engine:
            return ""
        return "rerank" if "--reranking" in self.argv else "embedding" if "--embedding" in self.argv else "chat"

    @property
    def digest(self) -> str:
        """SHA-256 of everything that requires a restart of a running engine when it changes.

        Program, host, port and model path are placeholders, so another port is not another plan. The order of
        environment variables and the list of fields without effect are left out.
        """
        optional = filter(None, [self.keys_digest, self.restarted_at, self.adapters, self.engine, self.program])
        facts = [self.runtime, dump_argv(self.argv), sorted(self.env), self.weights_identity, *optional]
        return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()


def dump_argv(argv: tuple[str, ...]) -> list[str | list[str]]:
    """Return argv as JSON; placeholders and templates are lists, to differ from equal strings of a user."""
    return [
        [arg.name] if isinstance(arg, Placeholder) else ["", arg] if isinstance(arg, TemplateText) else arg
        for arg in argv
    ]


def load_argv(data: list[str | list[str]]) -> tuple[str, ...]:
    """Read what `dump_argv` wrote.

    Raises:
        KeyError: It has an unknown placeholder.
        IndexError: It has an empty list.
    """
    return tuple(
        arg if isinstance(arg, str) else TemplateText(arg[1]) if len(arg) > 1 else Placeholder[arg[0]] for arg in data
    )
