"""What a runtime is on a host: a row with its program, its plan, and how one asks its engines and reads their logs.

What an engine does not tell is not known: its row then has nothing in that place, and no other engine's words are read
into its log or its answers.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import attrs

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.plan import EngineInfo, LaunchPlan
from llmkube.runtimes.process.exits import GENERAL_RULES, Diagnosis, Rule
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.weights.estimate.demand import Component


class ProgramError(ValueError):
    """A program is not what it should be; the sentence says what is wrong and what to do."""


@attrs.frozen
class Program:
    """The program of a runtime.

    Attributes:
        command: Its name, as it is looked for on PATH.
        setting: The agent's flag that names another one; "" where none does.
        remedy: What brings it to a host that does not have it.
        describe: Returns what it is, from its path and its answers to `queries`; raises `ProgramError`.
        queries: The command lines that it is asked for itself with; `{program}` is what runs.
        find_interpreter: Returns the interpreter of a script, such as its Python, from its first lines; raises
            `ProgramError`. None where the program itself runs.
    """

    command: str
    setting: str
    remedy: str
    describe: Callable[[str, Sequence[str]], EngineInfo]
    queries: tuple[tuple[str, ...], ...] = (("{program}", "--help"), ("{program}", "--version"))
    find_interpreter: Callable[[str], str] | None = None


@attrs.frozen
class EngineQueries:
    """What the engines of a runtime are asked while they serve, and how their answers read.

    Attributes:
        metrics_path: GET it for numbers as Prometheus reads them; "" where there are none.
        metric: Finds one of them: its name and its number.
        work: Those that count requests, in flight or queued.
        progress: Those that change with every batch.
        slots_path: GET it for who is at work; "" where nothing says.
        names_path: GET it for the names that it answers to; "" where that says something else.
        build_path: GET it for the build that serves, as `build_info`, where that may change while the engine runs;
            "" of an engine that is its program.
    """

    metrics_path: str = ""
    metric: re.Pattern[bytes] = re.compile(rb"(?!)()()")
    work: frozenset[str] = frozenset()
    progress: tuple[str, ...] = ()
    slots_path: str = ""
    names_path: str = ""
    build_path: str = ""


def _nothing(_lines: Sequence[str]) -> None:
    return None


@attrs.frozen
class LogReader:
    """What lines mean that the engines of a runtime write.

    Attributes:
        rules: Why one has ended.
        phase: What one that loads does; "" where no line says so.
        buffers: What one has allocated; nothing where no line says so.
        device_limit: What its GPU may hold, in bytes.
        gpu_failure: What has failed on its GPU, for good.
    """

    rules: tuple[Rule, ...] = GENERAL_RULES
    phase: Callable[[Sequence[str]], str] = lambda _lines: ""
    buffers: Callable[[Iterable[str]], tuple[Component, ...]] = lambda _lines: ()
    device_limit: Callable[[Sequence[str]], int | None] = _nothing
    gpu_failure: Callable[[Sequence[str]], Diagnosis | None] = _nothing


LLAMA_QUERIES: Final = EngineQueries(
    metrics_path="/metrics",
    metric=re.compile(rb"^llamacpp:(\w+)(?:\{[^}]*\})?\s+([0-9.eE+]+)", re.MULTILINE),
    work=frozenset({"requests_processing", "requests_deferred"}),
    progress=("n_decode_total", "prompt_tokens_total", "tokens_predicted_total"),
    slots_path="/slots",
    names_path="/v1/models",
)
FRONT_QUERIES: Final = attrs.evolve(LLAMA_QUERIES, build_path="/props")
"""Of the process before a shared daemon, which looks like llama-server."""


@attrs.frozen(kw_only=True)
class HostRuntime:
    """One runtime of hosts, as a row of the table in `host_runtimes`.

    Attributes:
        name: Its name in `spec.runtime`, in plans and in the status.
        other_names: Other values of `spec.runtime` that mean it.
        program: What runs.
        check: Refuses what the objects alone show to be impossible, before anything is downloaded, by a `PlanError`
            with the field that stands in the way.
        plan: Returns the plan of one engine, or raises `PlanError`.
        queries: What its engines are asked.
        log: What their lines mean.
        memory_elsewhere: Another process than the engine may hold the model: a daemon that its owner runs.
        library: The scheme of sources that its own program pulls and keeps; "" of one that is given files alone.
        keys_checked_by: Who asks clients for keys.
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
    keys_checked_by: Literal["itself", "what LLMKube puts before it", "the agent's proxy"] = "itself"

    @property
    def takes_keys(self) -> bool:
        """Whether its engines ask for keys; before the others the agent puts a proxy that does."""
        return self.keys_checked_by != "the agent's proxy"


NO_LOG_READER: Final = LogReader()
NO_QUERIES: Final = EngineQueries()
