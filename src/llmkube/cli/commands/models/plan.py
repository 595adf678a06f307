"""Plan which models a set of hosts would hold, with the functions by which agents decide; reads no file.

The need of a service is that of the command line that its agent would start; admission decides which services are
loaded together, and which make room for others.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.base.errors import UserError
from llmkube.base.units import format_bytes
from llmkube.cli.commands.models.fit import assess
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import ON_REQUEST
from llmkube.runtimes.devices import Device
from llmkube.runtimes.llama_verdicts import VERDICTS
from llmkube.runtimes.plan import EngineInfo
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import check, plan_for
from llmkube.supervisor.cluster.claims import rank
from llmkube.supervisor.memory import admission
from llmkube.supervisor.memory.budget import GIB, host_budget
from llmkube.supervisor.memory.capacity import Capacity, summarize_capacity
from llmkube.supervisor.memory.policy import Policy
from llmkube.supervisor.memory.refusal import Refusal, find_refusal
from llmkube.supervisor.memory.reservation import MemorySpec, Request, Reservation, Usage
from llmkube.supervisor.service.planner import Adapter, adapter_tensors
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.need import need_of
from llmkube.weights.estimate.demand import Demand
from llmkube.weights.estimate.sizing import estimate
from llmkube.weights.formats.shape import GGUFFacts, Shape
from llmkube.weights.store.blobs import WeightsFile

ENGINE: Final = EngineInfo("llama-server", "", frozenset(VERDICTS))
"""An engine that knows every flag, as a current build of llama.cpp does."""

SIZES_GIB: Final = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
"""Memory of machines that are suggested."""

RESIDENT, ON_DEMAND, MISSING = "resident", "on demand", "does not fit"


@attrs.frozen
class Host:
    """A host.

    Attributes:
        name: Its name.
        memory: Its memory in bytes.
        accelerator: Accelerator that it computes on.
        fraction: `--memory-fraction`.
        used: Bytes that other programs use.
        devices: Bytes of each device with memory of its own, by name.
        activation: Mode of services that set none.
        read: Bytes of a file that it reads in a second.
    """

    name: str
    memory: int
    accelerator: str = "cpu"
    fraction: float | None = None
    used: int = 0
    devices: Mapping[str, int] = {}
    activation: str = ON_REQUEST
    read: int = GIB

    @property
    def empty(self) -> Capacity:
        """Its memory without an engine."""
        budget, policy = attrs.evolve(host_budget(self.memory, self.fraction), devices=self.devices), Policy()
        floor, small = policy.floor_bytes(self.memory), policy.small_bytes
        return Capacity(budget, self.memory - self.used, floor, small, devices=self.devices)


@attrs.frozen
class Wanted:
    """A service to place, with its draft model and adapters; without `is_bound`, any accelerator serves it."""

    service: InferenceService
    model: Model
    header: GGUFFacts
    is_bound: bool = True
    draft: tuple[WeightsFile, GGUFFacts] | None = None
    adapters: Sequence[Adapter] = ()


@attrs.frozen
class Placed:
    """A service in the plan.

    Attributes:
        name: Its name.
        host: Its host; "" for none.
        context: Tokens of all slots.
        slots: Requests at the same time.
        need_bytes: Memory that it needs, on the host and on devices.
        load_bytes: Size of the file that a load reads.
        load_seconds: Time for reading it.
        state: `RESIDENT`, `ON_DEMAND` or `MISSING`.
        displaces: Services that make room for it.
        why: Why it does not fit.
        helps: Changes that would help.
    """

    name: str
    host: str
    context: int
    slots: int
    need_bytes: int
    load_bytes: int
    load_seconds: float
    state: str
    displaces: Sequence[str] = ()
    why: str = ""
    helps: Sequence[str] = ()


@attrs.frozen
class Plan:
    """Hosts with their remaining memory, and the placement of each service, residents first."""

    hosts: Sequence[tuple[Host, Capacity]]
    services: Sequence[Placed]


def make_plan(hosts: Sequence[Host], wanted: Sequence[Wanted], catalog: Mapping[str, Shape]) -> Plan:
    """Return the plan: services in the order of their priority, those that are always loaded first.

    Args:
        hosts: The hosts.
        wanted: The services.
        catalog: The models by name that may be suggested instead of one that does not fit.

    Raises:
        UserError: A service cannot be served by any host, whatever its memory.
    """
    held, placed, left = {host.name: host.empty for host in hosts}, list[Placed](), list[_Candidate]()
    candidates = [_candidate(each, hosts) for each in wanted for _ in range(each.service.spec.replicas)]
    for each in sorted(candidates, key=lambda one: one.order):
        free = {host.name: summarize_capacity(held[host.name], 0).free_bytes for host in each.possible}
        able = [host for host in each.possible if find_refusal(each.request(host), held[host.name]) is None]
        if not able:
            left.append(each)
            continue
        host = min(able, key=lambda one: rank(one.name, free))
        request, capacity = each.request(host), held[host.name]
        engine = Reservation(len(placed) + 1, request.key, request.need, request.spec, loaded_at=0.0)
        held[host.name] = attrs.evolve(capacity, reservations=(*capacity.reservations, engine))
        placed.append(each.placed(host, RESIDENT))
    placed += [each.placed_later(held, catalog) for each in left]
    return Plan([(host, held[host.name]) for host in hosts], placed)


@attrs.frozen
class _Candidate:
    """A service, the hosts that have its accelerator, and what each would start."""

    wanted: Wanted
    hosts: Sequence[Host]
    launches: Mapping[str, Launch]

    @property
    def order(self) -> tuple[bool, int]:
        spec = self.request(self.hosts[0]).spec
        return spec.on_request, -spec.rank

    @property
    def possible(self) -> list[Host]:
        return [host for host in self.hosts if self.refusal_alone(host) is None]

    def refusal_alone(self, host: Host) -> Refusal | None:
        return find_refusal(self.request(host), Capacity(host.empty.budget, host.memory))

    def request(self, host: Host) -> Request:
        """Return the memory request of this service, with one waiting user."""
        spec, hardware = self.wanted.service.spec, self.wanted.model.spec.hardware
        on_request, pin = (spec.activation.mode or host.activation) == ON_REQUEST, spec.activation.pin
        memory = MemorySpec(spec.priority, spec.eviction_protection, hardware, on_request, pin)
        devices = [Device(host.accelerator, name, name, size) for name, size in host.devices.items()]
        need = need_of(self.launches[host.name], None, devices)
        return Request(self.wanted.service.key, need, memory, usage=Usage(1, 1, 0.0))

    def placed(self, host: Host, state: str, **more: Any) -> Placed:
        launch, need, name = self.launches[host.name], self.request(host).need, self.wanted.service.key.name
        size, demand = launch.weights.size_bytes, launch.plan.demand or Demand()
        total, where = need.total_bytes + sum(need.devices.values()), "" if state == MISSING else host.name
        return Placed(name, where, demand.context, demand.slots, total, size, size / host.read, state, **more)

    def placed_later(self, held: Mapping[str, Capacity], catalog: Mapping[str, Shape]) -> Placed:
        """Return it as a service that the fewest others make room for, or as one that has no place."""
        steps = [(host, admission.step((self.request(host),), held[host.name]).displaced) for host in self.possible]
        if able := [each for each in steps if each[1]]:
            host, displaced = min(able, key=lambda each: len(each[1]))
            return self.placed(host, ON_DEMAND, displaces=[each.victim.name for each in displaced])
        host = max(self.hosts, key=lambda each: each.empty.budget.limit_bytes)
        refusal = self.refusal_alone(host) or find_refusal(self.request(host), held[host.name])
        return self.placed(host, MISSING, why=refusal.message if refusal else "", helps=[*self.helps(host, catalog)])

    def helps(self, host: Host, catalog: Mapping[str, Shape]) -> Iterator[str]:
        """Yield what would make it fit on a host."""
        launch, budget, name = self.launches[host.name], host.empty.budget, self.wanted.service.key.name
        if self.refusal_alone(host) is None:
            yield "another host; for others, spec.activation.mode OnRequest or a lower spec.priority"
        elif launch.shape is not None and (demand := launch.plan.demand) is not None:
            verdict = assess("", launch.shape, demand, budget)
            yield from (f"a KV cache of type {kind} ({format_bytes(size)})" for kind, size in verdict.smaller[:1])
            if 0 < (largest := verdict.largest_context or 0) < demand.context:
                yield f"a context of {largest} tokens"
            smaller = [
                (model.startswith(name.split("-")[0]), shape.size_bytes, model)
                for model, shape in catalog.items()
                if shape.size_bytes < launch.weights.size_bytes
                and estimate(shape, demand).total_bytes <= budget.limit_bytes
            ]
            yield from (f"a smaller model of the catalog: {model}" for *_, model in sorted(smaller)[-1:])
            need = self.request(host).need.total_bytes
            sizes = [each for each in SIZES_GIB if host_budget(each * GIB).limit_bytes >= need]
            yield from (f"a host with {each} GiB" for each in sizes[:1])


def _candidate(wanted: Wanted, hosts: Sequence[Host]) -> _Candidate:
    kind = wanted.model.spec.hardware.accelerator
    able = [host for host in hosts if not wanted.is_bound or kind in (host.accelerator, "cpu")]
    if not able:
        raise UserError(f"{wanted.service.key.name} needs {kind}, which no host has; change its Model or a host")
    return _Candidate(wanted, able, {host.name: _launch(wanted, host) for host in able})


def _launch(wanted: Wanted, host: Host) -> Launch:
    service, model, header = wanted.service, wanted.model, wanted.header
    if not wanted.is_bound:
        hardware = attrs.evolve(model.spec.hardware, accelerator=host.accelerator)
        model = attrs.evolve(model, spec=attrs.evolve(model.spec, hardware=hardware))
    check(service, model)
    weights, on_gpu = WeightsFile(Path(model.spec.source), header.size_bytes, None, ""), host.accelerator != "cpu"
    inputs = PlanInputs(service, model, weights, header, ENGINE, alias=service.key.name, has_gpu=on_gpu)
    files, (draft, of_draft) = tuple(file for file, _ in wanted.adapters), wanted.draft or (None, None)
    plan = plan_for(attrs.evolve(inputs, draft=draft, adapters=files))
    demand = plan.demand
    if demand is not None:
        projector, tensors = header.projector, tuple(adapter_tensors(service, wanted.adapters, header))
        demand = attrs.evolve(demand, draft=of_draft.shape if of_draft else None, adapters=tensors)
        demand = attrs.evolve(demand, projector=projector.shape if projector and demand.projector_path else None)
    if demand is not None and host.accelerator == "metal":
        demand = attrs.evolve(demand, machine="arm64")
    return Launch(plan, weights, estimate(header.shape, demand) if header.shape and demand else None, header.shape)
