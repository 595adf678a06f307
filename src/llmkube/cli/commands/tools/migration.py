"""What will be otherwise for objects that the Go implementation serves now, and how each of them stays as it is.

Facts of its version 0.9.19 and of that version's chart.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.base.errors import UserError
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.pod_policy import refusal_message, service_refusals
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import GROUP
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import METAL
from llmkube.k8s.wire.names import service_name
from llmkube.runtimes.arguments import flags_in
from llmkube.runtimes.llama_fields import DEFAULT_CONTEXT
from llmkube.runtimes.llama_verdicts import spellings_of
from llmkube.runtimes.registry import LLAMACPP_NAMES, check, container_plan_for

REFUSED: Final = "refused"
CHANGES: Final = "changes"
LEFT: Final = "left alone"

KINDS_OF_THEIRS: Final[Mapping[str, str]] = {
    "GPUQuota": "no program of ours counts GPUs against it: write a ResourceQuota for requests.nvidia.com/gpu, or use "
    "Kueue",
    "LoRAAdapter": "no program of ours loads it: name adapters in spec.sglangConfig, which loads them at the start",
    "ModelPool": "no program of ours swaps its members: all of them run, or wait for a GPU by spec.priority",
}
"""Kinds of theirs that we lack, and what becomes of each object. The objects stay where they are."""

_THEIR_METAL_CONTEXT: Final = 2048
_CONTEXT: Final = frozenset(spellings_of("--ctx-size"))
_SLOTS: Final = frozenset(spellings_of("--parallel"))
_SETTINGS: Final = WorkloadSettings(image="llmkube")

Body = Mapping[str, Any]


@attrs.frozen
class Finding:
    """One thing to know about one object.

    Attributes:
        subject: `InferenceService ns/name`.
        what: `refused`, `changes` or `left alone`.
        says: What is or will be so.
        keep: How it stays as it is; empty where it cannot.
    """

    subject: str
    what: str
    says: str
    keep: str = ""


def findings(bodies: Sequence[Body]) -> Iterator[Finding]:
    """Yield what there is to know, object by object, in their order."""
    models = {_key(body): body for body in bodies if body.get("kind") == "Model"}
    for body in bodies:
        kind, subject = str(body.get("kind", "")), f"{body.get('kind')} {'/'.join(_key(body))}"
        if not str(body.get("apiVersion", "")).startswith(f"{GROUP}/"):
            continue
        if kind in KINDS_OF_THEIRS:
            yield Finding(subject, LEFT, KINDS_OF_THEIRS[kind])
        elif kind == "ModelRouter":
            yield Finding(
                subject, LEFT, "it is stored, and no program of ours routes by it: its proxy goes on as theirs"
            )
        elif kind == "InferenceService":
            namespace, _ = _key(body)
            model = models.get((namespace, str(body["spec"].get("modelRef", ""))))
            yield from _of_service(subject, body, model)


def _of_service(subject: str, body: Body, model: Body | None) -> Iterator[Finding]:
    if model is None:
        name = body["spec"].get("modelRef")
        yield Finding(subject, REFUSED, f'its Model "{name}" is not among these objects, so only names are compared')
        yield from _names(subject, body)
        return
    try:
        service, its = decode(InferenceService, body), decode(Model, model)
        on_host = its.spec.hardware.accelerator == METAL
        if on_host:
            check(service, its)
        else:
            container_plan_for(service, its, rendered=RENDERED)
            if refusals := service_refusals(service.spec, _SETTINGS):
                yield Finding(subject, REFUSED, refusal_message(refusals))
    except UserError as error:
        yield Finding(subject, REFUSED, str(error))
        return
    if service.spec.runtime in LLAMACPP_NAMES:
        yield from _llama(subject, body, on_host=on_host)
    yield from _names(subject, body)
    if not on_host:
        yield from _pods(subject, body, model)


def _llama(subject: str, body: Body, *, on_host: bool) -> Iterator[Finding]:
    spec = body["spec"]
    flags = flags_in(spec.get("extraArgs") or ())
    if "contextSize" not in spec and not flags & _CONTEXT:
        there = f"{_THEIR_METAL_CONTEXT} tokens" if on_host else "all that the model was trained for"
        keep = f"spec.contextSize: {_THEIR_METAL_CONTEXT}" if on_host else 'spec.extraArgs: ["--ctx-size", "0"]'
        yield Finding(subject, CHANGES, f"context: {there} there, at most {DEFAULT_CONTEXT} here", keep=keep)
    if "parallelSlots" not in spec and not flags & _SLOTS and not on_host:
        yield Finding(
            subject, CHANGES, "slots: the engine's own number there (4), 1 here", keep="spec.parallelSlots: 4"
        )


def _names(subject: str, body: Body) -> Iterator[Finding]:
    name = str(body["metadata"]["name"])
    theirs, ours = name.replace(".", "-"), service_name(name)
    if theirs != ours:
        yield Finding(
            subject,
            CHANGES,
            f"name: clients reach it as {theirs} there, as {ours} here",
            keep=f"a Service {theirs} of type ExternalName that leads to {ours}",
        )


def _pods(subject: str, body: Body, model: Body) -> Iterator[Finding]:
    spec, gpu = body["spec"], (model["spec"].get("hardware") or {}).get("gpu") or {}
    runtime = spec.get("runtime", "llamacpp")
    if not spec.get("image"):
        yield Finding(
            subject, CHANGES, f"image: another build of {runtime}", keep="spec.image, or the chart's workloads.images"
        )
    if not spec.get("priorityClassName"):
        level = spec.get("priority", "normal")
        yield Finding(
            subject,
            CHANGES,
            f"priority: PriorityClass llmkube-{level} there, which displaces ordinary pods; "
            f"llmkube-service-{level} here, which does not",
            keep="the chart's priorityClasses.outrankPods: true",
        )
    if spec.get("multiNode"):
        said = "several nodes: a LeaderWorkerSet here, which is refused while the cluster has no such kind"
        yield Finding(subject, CHANGES, said, keep="install https://lws.sigs.k8s.io")
    if gpu.get("vendor") == "amd" and gpu.get("runtime") and not gpu.get("resourceName"):
        said = "GPU: its pods ask for devic.es/dri-render there, for amd.com/gpu here"
        yield Finding(
            subject,
            CHANGES,
            said,
            keep=f"the chart's workloads.gpuResources: {{amd-{gpu['runtime']}: devic.es/dri-render}}",
        )


def _key(body: Body) -> tuple[str, str]:
    metadata = body.get("metadata") or {}
    return str(metadata.get("namespace") or "default"), str(metadata.get("name", ""))
