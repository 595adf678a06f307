"""Turn the newest desired state of a service into a target: fetch, read, plan.

The planner never touches a process. A spec that cannot be planned leaves the last target in place, so a bad edit stops
nothing.
"""

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.base.backoff import Backoff
from llmkube.base.errors import ExternalError, LLMKubeError, UserError
from llmkube.base.mailbox import Mailbox
from llmkube.base.waiting import wait_any
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.crd.model import Model, ModelSpec
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.llama_fields import draft_of, takes_projector
from llmkube.runtimes.plan import EngineNotConfiguredError, PlanError
from llmkube.runtimes.process.host_runtimes import engine_key_of, host_runtime_of, refuse_library
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import check, plan_for
from llmkube.supervisor.memory.budget import own_cap
from llmkube.supervisor.service.context import ServiceContext
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.service.measurement import explain
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.values.activation import mode_of, unused_fields
from llmkube.supervisor.values.api_keys import digest_of
from llmkube.supervisor.values.desired import Desired, Idle, Launch, Target, launch_of
from llmkube.supervisor.values.need import need_of
from llmkube.weights.download.progress import Progress
from llmkube.weights.errors import DigestMismatchError
from llmkube.weights.estimate.sizing import estimate
from llmkube.weights.formats.adapter import adapter_problem
from llmkube.weights.formats.gguf import require_model
from llmkube.weights.formats.projector import with_projector
from llmkube.weights.formats.shape import GGUFFacts, ModelHeader, Shape, Tensor
from llmkube.weights.store.blobs import WeightsFile

PROGRESS_SECONDS: Final = 2.0
"""Interval at which the progress of a fetch is written."""


KEYS_SECONDS: Final = 60.0
"""Longest interval between two checks of the Secret with a service's API keys."""

PREVIEW_SECONDS: Final = 10.0
"""Time limit for the header of a remote file; without it the download shows what is wrong."""

# The estimate of a large model takes milliseconds before its engine can start; services of one Model share it.
_estimate = functools.lru_cache(maxsize=16)(estimate)


@attrs.frozen
class _Draft:
    """File and shape of the draft model."""

    weights: WeightsFile
    shape: Shape | None


Adapter = tuple[WeightsFile, ModelHeader]
_Report = Callable[[Progress], None]


class ModelMissingError(UserError):
    """A further Model that a service names does not exist; the service is planned again when it does."""

    reason = Reason.MODEL_NOT_FOUND


@attrs.define(eq=False)
class Planner:
    """Keeps the target of one service in line with its newest desired state.

    Attributes:
        context: State that the engines of the service share.
        target: Target that should run.
    """

    context: ServiceContext
    target: Mailbox[Target]

    async def run(self, replan: Mailbox[None]) -> None:
        """Plan again whenever `replan` changes (newer desired state, another engine program); never return."""
        manager, target = self.context.status_manager, self.target
        while True:
            version = replan.version
            newer = partial(replan.wait_newer, version)
            await self._plan_unless_newer(newer)
            launch = launch_of(target.value)
            if launch is not None and manager.facts.desired.service.spec.api_key_secret_ref is not None:
                await wait_any(newer, partial(self._wait_keys_changed, launch))
            else:
                await newer()  # the planner of an idle service is one task that waits

    async def _wait_keys_changed(self, launch: Launch) -> None:
        """Return when the service's Secret has other keys than its plan, or cannot be used any more."""
        ports = self.context.ports
        while True:
            await trio.sleep(KEYS_SECONDS * ports.rng.uniform(0.75, 1.0))
            try:
                keys = await ports.client_keys(self.context.status_manager.facts.desired.service)
            except UserError:
                return
            except ExternalError:
                continue  # the known keys stay in effect
            if digest_of(keys) != launch.plan.keys_digest:
                return

    async def _plan_unless_newer(self, newer: Callable[[], Awaitable[object]]) -> None:
        """Plan, with retries, until it succeeds, retrying cannot help or the desired state changes."""
        line = _ProgressLine(self.target, self.context.status_manager)

        async def plan() -> None:
            backoff, failures = Backoff(cap_seconds=self.context.settings.retry_cap_seconds), 0
            while not await self._plan(line):
                failures += 1
                await trio.sleep(backoff.delay(failures, self.context.ports.rng))

        await wait_any(plan, newer, line.run)

    async def _plan(self, progress: "_ProgressLine") -> bool:
        """Plan once; return False if a retry could help."""
        manager, ports, settings = self.context.status_manager, self.context.ports, self.context.settings
        desired = manager.facts.desired
        if not desired.running:
            word = "suspended" if desired.service.spec.suspend else "replicas=0"
            self.target.put_nowait(Idle(Reason.SCALED_TO_ZERO, word))
            return True
        try:
            check(desired.service, desired.model, settings.allowances, settings.mlx_runtime)
            own_cap(desired.model.spec.hardware, ports.facts().total_bytes)  # refuses a cap that is none
        except UserError as error:
            return self._refuse(error)
        keys: tuple[str, ...] = ()
        if desired.service.spec.api_key_secret_ref is not None:
            try:
                keys = await ports.client_keys(desired.service)
            except LLMKubeError as error:
                return self._fail(error, Reason.API_KEYS_NOT_READ)
        if (permanent_refusal := await self._preview(desired)) is not None:
            self._idle_unless_running(permanent_refusal.reason, permanent_refusal.message)
            return False
        try:
            with progress:
                weights, facts = await self._fetch(desired, progress)
            require_model(facts, f"Model {desired.model.key.name}")
        except LLMKubeError as error:
            manager.update(Facts.without_file, error)
            self._fail(error, Reason.FETCH_FAILED)
            # Retried even after a user's error: the file may appear or be fixed without an edit of the object. But a
            # complete file with the wrong digest is not downloaded again in vain.
            return isinstance(error, DigestMismatchError) and error.final
        part = "draft model"
        try:
            with progress:
                draft = await self._fetch_draft(desired, progress)
                part = "adapters"
                named = zip_longest([each.model_ref for each in desired.service.spec.adapters], desired.adapters)
                adapters = [await self._fetch_further(desired, *each, progress) for each in named]
        except LLMKubeError as error:
            manager.update(Facts.with_file, weights, facts)
            return self._fail(error, Reason.FETCH_FAILED, f"the {part}: {error}")
        manager.update(Facts.with_file, weights, facts)  # only now: until then the progress of the draft is reported
        try:
            await self._check_draft(desired, weights, draft)
            launch = await self._launch(desired, weights, facts, draft=draft, adapters=adapters, keys=keys)
        except UserError as error:
            return self._refuse(error)
        except ExternalError as error:
            return self._fail(error, Reason.ENGINE_NOT_FOUND)
        mode = mode_of(desired, settings.activation)
        unused = unused_fields(desired.service.spec, mode)
        manager.update(Facts.with_plan, (*launch.plan.not_honoured, *unused))
        need = await self.context.need(launch)
        activation = self.context.gate.activation  # read after the last wait
        refusal = None if activation.wanted else self.context.ledger.permanent_refusal(self.context.key, need)
        idle = None if refusal is None else Idle(refusal.reason, explain(refusal, launch))
        self.target.put_nowait(activation.target(launch, idle))
        manager.changed.put_nowait(None)  # the keys of its clients may have
        return True

    async def _fetch(self, desired: Desired, progress: Callable[[Progress], None]) -> tuple[WeightsFile, ModelHeader]:
        """Fetch the Model's file, and its projector if the engine takes one; the header has the facts of both."""
        fetcher = self.context.ports.weights
        weights, facts = await fetcher.fetch(desired.model, progress)
        if isinstance(facts, GGUFFacts) and takes_projector(desired.service, desired.model):
            found = await fetcher.fetch_projector(desired.model, weights, facts, progress)
            facts = with_projector(facts, found)
        return weights, facts

    async def _fetch_draft(self, desired: Desired, progress: Callable[[Progress], None]) -> _Draft | None:
        """Fetch the file of the draft model, if the service has one."""
        named = draft_of(desired.service.spec)
        if not named:
            return None
        model = desired.draft
        if named.startswith("/"):  # a file of this host, which the rules for a Model's source apply to
            metadata = ObjectMeta(name=desired.key.name, namespace=desired.key.namespace)
            model = Model(metadata=metadata, spec=ModelSpec(source=named))
        if model is not None:
            refuse_library(host_runtime_of(desired.service, desired.model).name, model, draft=True)
        weights, facts = await self._fetch_further(desired, named, model, progress)
        return _Draft(weights, facts.shape)

    async def _fetch_further(self, desired: Desired, name: str, model: Model | None, progress: _Report) -> Adapter:
        """Fetch the file of a further Model, and read its header."""
        if model is None:
            raise ModelMissingError(f"Model {name} not found in namespace {desired.key.namespace}; create it")
        return await self.context.ports.weights.fetch(model, progress)

    async def _check_draft(self, desired: Desired, weights: WeightsFile, draft: _Draft | None) -> None:
        """Refuse a draft model with other tokens: the engine would load it, and not use it."""
        speculation = desired.service.spec.speculative_decoding
        if draft is None or (speculation is not None and speculation.type not in {"draft", "draft-simple"}):
            return
        if why := await self.context.ports.weights.compare_vocabularies(weights, draft.weights):
            message = f"{draft_of(desired.service.spec)} cannot draft for this model: {why}; use one of its family"
            raise PlanError(message, field=f"spec.{'extraArgs' if speculation is None else 'speculativeDecoding'}")

    async def _launch(
        self,
        desired: Desired,
        weights: WeightsFile,
        facts: ModelHeader,
        *,
        draft: _Draft | None = None,
        adapters: Sequence[Adapter] = (),
        keys: tuple[str, ...] = (),
    ) -> Launch:
        settings = self.context.settings
        tensors = tuple(adapter_tensors(desired.service, adapters, facts))
        plan = plan_for(
            PlanInputs(
                desired.service,
                desired.model,
                weights,
                facts,
                await self.context.ports.engines.info(
                    engine_key_of(desired.service, desired.model, settings.mlx_runtime)
                ),
                alias=desired.key.name,
                draft=draft.weights if draft else None,
                adapters=tuple(weights for weights, _ in adapters),
                allowances=settings.allowances,
                asks_key=not settings.insecure_lan,
                keys_digest=digest_of(keys),
                mlx_runtime=settings.mlx_runtime,
                has_gpu=bool(settings.devices),
            )
        )
        demand = plan.demand
        if demand is not None:
            demand = attrs.evolve(demand, draft=draft.shape if draft else None, adapters=tensors)
        if demand is not None and demand.projector_path and isinstance(facts, GGUFFacts) and facts.projector:
            demand = attrs.evolve(demand, projector=facts.projector.shape)
        expected = _estimate(facts.shape, demand) if facts.shape is not None and demand is not None else None
        return Launch(plan, weights, expected, facts.shape, client_keys=keys)

    async def _preview(self, desired: Desired) -> Idle | None:
        """Return why a remote file should not be downloaded: it could not be served even alone on this host.

        Other errors that its header shows are ignored here: the fetch and the plan report them.
        """
        with trio.move_on_after(PREVIEW_SECONDS):
            try:
                facts = await self.context.ports.weights.preview(desired.model)
                if facts is None:
                    return None
                file = WeightsFile(Path(desired.model.spec.source), facts.size_bytes, None, "")
                launch = await self._launch(desired, file, facts)
            except LLMKubeError:
                return None
            if launch.estimate is None or not launch.estimate.certain:
                return None
            refusal = self.context.ledger.permanent_refusal(
                desired.key, need_of(launch, None, self.context.settings.devices)
            )
            if refusal is not None:
                return Idle(refusal.reason, f"{explain(refusal, launch)}; its file is not downloaded")
        return None

    def _refuse(self, error: UserError) -> bool:
        """Report that the newest spec cannot be planned; return True, since only an edit can help."""
        if isinstance(error, EngineNotConfiguredError):  # the objects are valid; the owner of the host can help, too
            self._idle_unless_running(Reason.ENGINE_NOT_FOUND, str(error))
            return True
        self.context.status_manager.update(Facts.without_plan, error)
        self._idle_unless_running(Reason.INVALID, str(error))
        return True

    def _fail(self, error: LLMKubeError, reason: str, message: str = "") -> bool:
        """Report why there is no plan yet; return False, since a retry could help."""
        self._idle_unless_running(getattr(error, "reason", reason), message or str(error))
        return False

    def _idle_unless_running(self, reason: str, message: str) -> None:
        """Report why nothing can run; or, if an engine runs, why it keeps running with an older plan."""
        if isinstance(self.target.value, Idle):
            self.target.put_nowait(Idle(reason, message))
        else:
            self.context.status_manager.update(Facts.with_unplanned, reason, message)


def adapter_tensors(service: InferenceService, adapters: Sequence[Adapter], base: ModelHeader) -> Iterator[Tensor]:
    """Yield the tensors of all adapters.

    Raises:
        PlanError: One of them does not fit the model.
    """
    for at, (named, (_, facts)) in enumerate(zip(service.spec.adapters, adapters, strict=False)):
        if problem := adapter_problem(facts, base):
            raise PlanError(f"Model {named.model_ref}: {problem}", field=f"spec.adapters[{at}].modelRef")
        if isinstance(facts, GGUFFacts) and facts.adapter is not None:
            yield from (tensor for tensor in facts.adapter.tensors if ".lora_" in tensor.name)


@attrs.define(eq=False)
class _ProgressLine:
    """Reports the progress of a fetch: at once when its stage or note changes, else at ticks that all services share.

    Services that wait for the same file then report the same progress, and the API server gets one write. The last
    progress before a download stalls is reported, too. It is entered while a fetch runs.
    """

    target: Mailbox[Target]
    manager: StatusManager
    _kind: tuple[str, str] = ("", "")
    _newest: Progress | None = None
    _updated: trio.Event = attrs.field(factory=trio.Event)

    def __enter__(self) -> None:
        self._kind = ("", "")

    def __exit__(self, *_: object) -> None:
        self._newest = None

    def __call__(self, progress: Progress) -> None:
        self._newest = progress
        if (progress.stage, progress.note) != self._kind:
            self._write()
        else:
            self._updated.set()

    async def run(self) -> None:
        """Write new progress at each tick; never return."""
        while True:
            await self._updated.wait()
            self._updated = trio.Event()
            await trio.sleep(PROGRESS_SECONDS - trio.current_time() % PROGRESS_SECONDS)
            self._write()

    def _write(self) -> None:
        if self._newest is not None:
            newest, line = self._newest, str(self._newest)
            self._kind, self._newest = (newest.stage, newest.note), None
            delay = newest.note if newest.stage == "waiting" and newest.reason else ""
            reason = Reason.STALLED if newest.reason == Reason.STALLED else Reason.FETCHING
            self.manager.update(Facts.with_fetch_progress, line, delay, reason)
            if isinstance(self.target.value, Idle):
                self.target.put_nowait(Idle(reason, line))
