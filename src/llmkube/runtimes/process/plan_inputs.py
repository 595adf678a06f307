"""Inputs of an engine's plan on a host, and the parts common to all runtimes or to those on a shared daemon."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import attrs

from llmkube.base.package_data import read_text
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import MLX_RUNTIME
from llmkube.k8s.fields import changed_paths
from llmkube.k8s.wire.names import RESTARTED_AT
from llmkube.runtimes.allowances import NO_ALLOWANCES, Allowances
from llmkube.runtimes.arguments import flag_words
from llmkube.runtimes.llama_fields import DEFAULT_CONTEXT, mode_of
from llmkube.runtimes.plan import EngineInfo, LaunchPlan, Placeholder, PlanError, front_words
from llmkube.weights.estimate.demand import Demand
from llmkube.weights.formats.shape import GGUFFacts, ModelHeader, Projector
from llmkube.weights.store.blobs import WeightsFile

HONOURED_BY_THE_HOST: Final = frozenset(read_text(__package__, "honoured_by_the_host.txt").split())
"""Fields that take effect without reaching the command line."""


def given_paths(isvc: InferenceService, model: Model) -> Iterator[str]:
    """Yield the paths of the fields that differ from their defaults."""
    spec = isvc.spec
    if spec.pod_annotations.keys() == {RESTARTED_AT}:  # honoured here; other annotations are for pods only
        spec = attrs.evolve(spec, pod_annotations={})
    yield from changed_paths(spec, "spec")
    yield from changed_paths(model.spec, "Model.spec")


@attrs.frozen
class PlanInputs:
    """Everything that is known of a service when its engine is planned.

    Attributes:
        isvc: The service.
        model: The Model that it refers to.
        weights: The Model's file or folder on this host.
        header: Facts of the model from these files.
        engine: The program that will run, as it describes itself.
        alias: Model id that the engine has to accept.
        draft: File of the draft model, if the service requests one (`llama_fields.draft_of`).
        adapters: Files of `spec.adapters`, in the same order.
        allowances: Flags and variables that the owner of the host allows.
        asks_key: Whether the engine requires a key from clients.
        keys_digest: Digest of the client keys that it accepts; with any, it always requires one.
        mlx_runtime: The MLX engine that the host uses by default.
        has_gpu: Whether the engine computes on a GPU of this host by default; not known on a Mac.
    """

    isvc: InferenceService
    model: Model
    weights: WeightsFile
    header: ModelHeader
    engine: EngineInfo
    alias: str = attrs.field(kw_only=True)
    draft: WeightsFile | None = attrs.field(default=None, kw_only=True)
    adapters: tuple[WeightsFile, ...] = attrs.field(default=(), kw_only=True)
    allowances: Allowances = attrs.field(default=NO_ALLOWANCES, kw_only=True)
    asks_key: bool = attrs.field(default=True, kw_only=True)
    keys_digest: str = attrs.field(default="", kw_only=True)
    mlx_runtime: str = attrs.field(default=MLX_RUNTIME, kw_only=True)
    has_gpu: bool = attrs.field(default=False, kw_only=True)

    @property
    def spec(self) -> InferenceServiceSpec:
        """Spec of the service."""
        return self.isvc.spec

    @property
    def projector(self) -> Projector | None:
        """The projector that the engine loads, if any."""
        return self.header.projector if isinstance(self.header, GGUFFacts) else None

    @property
    def context(self) -> int:
        """Tokens of a request: from the spec, or else the trained context up to `DEFAULT_CONTEXT`."""
        return self.spec.context_size or min(self.header.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT)

    @property
    def takes_keys(self) -> bool:
        """Whether the engine is given a file of keys."""
        return self.asks_key or bool(self.keys_digest)

    def launch_plan(
        self,
        argv: Sequence[str],
        *,
        runtime: str,
        env: Iterable[tuple[str, str]],
        demand: Demand | None,
        honoured: Collection[str],
        ignored: Iterable[str] = (),
        adapters: tuple[tuple[str, float], ...] = (),
    ) -> LaunchPlan:
        """Return the plan of this command line.

        Args:
            argv: The command line.
            runtime: Name of the runtime's row.
            env: Variables for the engine, in the user's order.
            demand: Settings that determine its memory; None if it cannot be estimated.
            honoured: Paths of the fields that have an effect.
            ignored: Descriptions of settings without effect in fields that are otherwise honoured.
            adapters: As in `LaunchPlan`.
        """
        beside = [each.identity for each in (self.draft, self.projector, *self.adapters) if each is not None]
        return LaunchPlan(
            argv=tuple(argv),
            env=tuple(env),
            runtime=runtime,
            alias=self.alias,
            weights_identity=" ".join([self.weights.identity, *beside]),
            not_honoured=(*(path for path in given_paths(self.isvc, self.model) if path not in honoured), *ignored),
            demand=demand,
            keys_digest=self.keys_digest,
            restarted_at=self.spec.pod_annotations.get(RESTARTED_AT, ""),
            weights_format=self.model.spec.format,
            adapters=adapters,
        )


def refuse_unsupported(spec: InferenceServiceSpec, runtime: str, daemon: str, instead: str) -> None:
    """Reject what no shared daemon supports for one of its models.

    Args:
        spec: Spec of the service.
        runtime: Its runtime.
        daemon: Name of the daemon.
        instead: Runtime to use for a service with variables.

    Raises:
        PlanError: The invalid field, with a fix.
    """
    if spec.extra_args:
        raise PlanError(f"{runtime} takes no extra arguments; remove them, or use llamacpp", field="spec.extraArgs")
    if spec.speculative_decoding is not None:
        message = f"{runtime} supports no draft model; remove it, or use llamacpp"
        raise PlanError(message, field="spec.speculativeDecoding")
    if spec.env:
        message = f"the environment of {daemon} belongs to its owner; remove these variables, or use {instead}"
        raise PlanError(message, field="spec.env")


def refuse_beyond_chat(spec: InferenceServiceSpec, runtime: str, place: str = "") -> None:
    """Reject what an engine does not support that serves only chats and completions, with fixed arguments.

    Args:
        spec: Spec of the service.
        runtime: Its runtime.
        place: Restricts the statement about modes, such as " here".

    Raises:
        PlanError: The invalid field, with a fix.
    """
    if (mode := mode_of(spec)) != "chat":
        problem = f"{runtime} serves chat and completions{place}, not {mode}"
        raise PlanError(f"{problem}; use llamacpp with weights in gguf", field="spec.mode")
    if spec.extra_args:
        raise PlanError(f"extra arguments are not supported with {runtime}; remove them", field="spec.extraArgs")
    if spec.speculative_decoding is not None:
        message = f"a draft model is not supported with {runtime}; remove it"
        raise PlanError(message, field="spec.speculativeDecoding")


def front_arguments(inputs: PlanInputs, runtime: str, program_flag: str, model: str = Placeholder.MODEL) -> list[str]:
    """Return the command line of a service's front process, without the flags that only one daemon's front has.

    Args:
        inputs: Inputs of the plan.
        runtime: Runtime of the service.
        program_flag: Flag for the daemon's program.
        model: The model's file or folder, or its name in the daemon's library.
    """
    return [
        *front_words(runtime),
        *flag_words(
            {
                program_flag: Placeholder.PROGRAM,
                "--model": model,
                "--service": f"{inputs.isvc.metadata.namespace}/{inputs.isvc.metadata.name}",
                "--host": Placeholder.HOST,
                "--port": Placeholder.PORT,
                "--alias": inputs.alias,
            }
        ),
        *(("--api-key-file", Placeholder.KEYS) if inputs.takes_keys else ()),
        *(("--embedding",) if mode_of(inputs.spec) == "embedding" else ()),
    ]
