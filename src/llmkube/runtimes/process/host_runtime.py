"""A runtime on a host: a row with its program, its plan, the queries for its engines and the reader of their logs.

A row leaves empty what its engines do not report; their logs and responses are never read by another runtime's rules.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.devices import Offload
from llmkube.runtimes.plan import EngineInfo, LaunchPlan
from llmkube.runtimes.process.exits import GENERAL_RULES, Diagnosis, GivenUp, Rule
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.weights.estimate.demand import Component


class ProgramError(ValueError):
    """A program is unsuitable; the message has the cause and the fix."""


@attrs.frozen
class Program:
    """The program of a runtime.

    Attributes:
        command: Its name on PATH.
        setting: Flag of the agent for the path of another one; "" if there is none.
        remedy: How to install it on a host that does not have it.
        describe: Returns its description, from its path and the outputs of `queries`; raises `ProgramError`.
        queries: Command lines that make it describe itself; `{program}` is the program that runs.
        find_interpreter: Returns the interpreter of a script, such as its Python, from its first lines; raises
            `ProgramError`. None if the program runs itself.
    """

    command: str
    setting: str
    remedy: str
    describe: Callable[[str, Sequence[str]], EngineInfo]
    queries: tuple[tuple[str, ...], ...] = (("{program}", "--help"), ("{program}", "--version"))
    find_interpreter: Callable[[str], str] | None = None


def by_version(pattern: str, problem: str) -> Callable[[str, Sequence[str]], EngineInfo]:
    """Return a `describe` that finds the version in the output of the first query.

    Args:
        pattern: Regular expression; its group is the version.
        problem: Message of the `ProgramError` if nothing matches; `{program}` is the path of the program.
    """

    def describe(program: str, outputs: Sequence[str]) -> EngineInfo:
        if (found := re.search(pattern, outputs[0])) is None:
            raise ProgramError(problem.format(program=program))
        return EngineInfo(program, found[1], frozenset())

    return describe


@attrs.frozen
class EngineQueries:
    """Queries for the engines of a runtime while they serve, and the format of their responses.

    Attributes:
        metrics_path: Path of Prometheus metrics; "" if there are none.
        metric: Pattern of a metric: its name and its number.
        work: Metrics that count requests, in flight or queued.
        progress: Metrics that change with every batch.
        slots_path: Path of the state of slots; "" if there is none.
        names_path: Path of the model names that it accepts; "" if there is none.
        build_path: Path of the build that serves, as `build_info`, if that may change while the engine runs; "" if the
            engine is its own program.
    """

    metrics_path: str = ""
    metric: re.Pattern[bytes] = re.compile(rb"(?!)()()")
    work: frozenset[str] = frozenset()
    progress: tuple[str, ...] = ()
    slots_path: str = ""
    names_path: str = ""
    build_path: str = ""


@attrs.frozen
class LogReader:
    """Reader of the log lines of a runtime's engines.

    Attributes:
        rules: Rules for the cause of an exit.
        phase: Returns the phase of a load; "" if no line reports one.
        buffers: Returns the allocated buffers; none if no line reports any.
        device_limit: Returns the memory limit of the GPU in bytes.
        gpu_failure: Returns the diagnosis of a permanent failure of the GPU.
        given_up: Returns the settings that a load has given up, from its lines and the command line.
        offload: Returns where the layers of the model are.
    """

    rules: tuple[Rule, ...] = GENERAL_RULES
    phase: Callable[[Sequence[str]], str] = lambda _lines: ""
    buffers: Callable[[Iterable[str]], tuple[Component, ...]] = lambda _lines: ()
    device_limit: Callable[[Sequence[str]], int | None] = lambda _lines: None
    gpu_failure: Callable[[Sequence[str]], Diagnosis | None] = lambda _lines: None
    given_up: Callable[[Sequence[str], Sequence[str]], tuple[GivenUp, ...]] = lambda _lines, _argv: ()
    offload: Callable[[Sequence[str]], Offload | None] = lambda _lines: None


LLAMA_QUERIES: Final = EngineQueries(
    metrics_path="/metrics",
    metric=re.compile(rb"^llamacpp:(\w+)(?:\{[^}]*\})?\s+([0-9.eE+]+)", re.MULTILINE),
    work=frozenset({"requests_processing", "requests_deferred"}),
    progress=("n_decode_total", "prompt_tokens_total", "tokens_predicted_total"),
    slots_path="/slots",
    names_path="/v1/models",
)
FRONT_QUERIES: Final = attrs.evolve(LLAMA_QUERIES, build_path="/props")
"""Queries for the front process of a shared daemon, which answers like llama-server."""


@attrs.frozen(kw_only=True)
class HostRuntime:
    """One runtime of hosts, as a row of the table in `host_runtimes`.

    Attributes:
        name: Its name in `spec.runtime`, in plans and in the status.
        other_names: Other values of `spec.runtime` for it.
        program: The program that runs.
        check: Raises a `PlanError` with the invalid field for objects that it cannot serve, before any download.
        plan: Returns the plan of one engine, or raises `PlanError`.
        queries: Queries for its engines.
        log: Reader of their logs.
        memory_elsewhere: Another process than the engine may hold the model: a daemon that its owner runs.
        library: Scheme of the sources that its own program pulls and stores; "" if it reads only files.
        keys_checked_by: Component that checks the API keys of clients.
    """

    name: str
    other_names: tuple[str, ...] = ()
    program: Program
    check: Callable[[InferenceService, Model, Allowances], None]
    plan: Callable[[PlanInputs], LaunchPlan]
    queries: EngineQueries = EngineQueries()
    log: LogReader = LogReader()
    memory_elsewhere: bool = False
    library: str = ""
    keys_checked_by: Literal["the engine", "LLMKube's front end", "the agent's proxy"] = "the engine"

    @property
    def takes_keys(self) -> bool:
        """Whether its engines check keys; the agent puts a proxy in front of the others."""
        return self.keys_checked_by != "the agent's proxy"
