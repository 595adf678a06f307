"""`llmkube migrate --check` and `llmkube convert`: migrate from the Go implementation of LLMKube."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import click
import yaml

from llmkube.apiserver.schema.defaults import apply_defaults, prune
from llmkube.apiserver.schema.structural import Schema
from llmkube.apiserver.schema.validation import validate
from llmkube.base.errors import UserError
from llmkube.cli.commands.tools.files import load_manifests
from llmkube.cli.commands.tools.kubeai import convert_kubeai, is_kubeai
from llmkube.cli.commands.tools.other_programs import PROGRAMS, Converted, converted
from llmkube.cli.options import cluster_options, manifests_option
from llmkube.cli.target_cluster import Cluster, ClusterFlags, answer_deadline, run_against
from llmkube.cli.view.output import printable
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.pod_policy import refusal_message, service_refusals
from llmkube.controller.settings import WorkloadSettings
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.first_api import convert, is_old
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import GROUP, VERSION
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import METAL
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.wire.names import service_name
from llmkube.programs.failures import CommandError
from llmkube.programs.options import command
from llmkube.runtimes.arguments import flags_in
from llmkube.runtimes.llama_fields import DEFAULT_CONTEXT
from llmkube.runtimes.llama_verdicts import spellings_of
from llmkube.runtimes.registry import LLAMACPP_NAMES, check, container_plan_for

REFUSED: Final = "refused"
CHANGES: Final = "changes"
UNCHANGED: Final = "left alone"
_EFFECTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ModelRouter": (UNCHANGED, "stored, but not used for routing here: its existing proxy keeps running"),
    "ModelPool": (
        CHANGES,
        "members start and stop by requests at the front door (gateway.enabled), not by spec.replicas",
        "spec.replicas: 1 for every member: 0 stops it for good",
    ),
    "GPUQuota": (
        CHANGES,
        "enforced by the controller here, without a webhook: objects are stored, and what exceeds it waits",
    ),
    "LoRAAdapter": (
        UNCHANGED,
        "not loaded here: list adapters in spec.sglangConfig, which loads them at the start",
    ),
}
"""The effect of the migration on all objects of a kind: outcome, message, and the setting that avoids it."""

_KINDS: Final = ("Model", "InferenceService", *_EFFECTS)
_GO_METAL_CONTEXT: Final = 2048
_CONTEXT: Final = frozenset(spellings_of("--ctx-size"))
_SLOTS: Final = frozenset(spellings_of("--parallel"))
_SETTINGS: Final = WorkloadSettings(image="llmkube")
Body = Mapping[str, Any]


@attrs.frozen
class Finding:
    """A finding about an object.

    Attributes:
        subject: `InferenceService ns/name`.
        outcome: `refused`, `changes` or `left alone`.
        message: Description of the refusal or the change.
        keep: Setting that keeps the previous behaviour; empty if there is none.
    """

    subject: str
    outcome: str
    message: str
    keep: str = ""


@command("migrate")
@click.option("--check", is_flag=True, help="Print the changes, and change nothing. Required.")
@manifests_option("names", "Read a file, a folder, or - for standard input, instead of the cluster.")
@cluster_options(all_namespaces=True)
def migrate(*, check: bool, names: tuple[str, ...], where: ClusterFlags) -> None:
    """Check what changes for objects that the Go implementation of LLMKube serves now.

    Reads the cluster, or files, and writes nothing. For each object it prints what is refused here, what changes
    (context, slots, names, image, priority), and how to keep the previous behaviour. Exits with 1 if something is
    refused.

    To migrate, install the chart and the agents in place of the previous ones: see docs/guides/from-llmkube-go.md.
    """
    if not check:
        raise click.UsageError("--check is required: to migrate, install the chart and the agents")
    if names:
        bodies: Sequence[Mapping[str, Any]] = [one.body for one in load_manifests(names, sys.stdin.read)]
    else:
        bodies = run_against(where, lambda cluster: _read(cluster, everywhere=where.all_namespaces))
    found = list(findings(bodies))
    click.echo("\n".join(_report(bodies, found)))
    if any(one.outcome == REFUSED for one in found):
        raise CommandError("the refused services above will not be served until they are edited or allowed")


async def _read(cluster: Cluster, *, everywhere: bool) -> list[Mapping[str, Any]]:
    place = "" if everywhere else f"/namespaces/{cluster.namespace}"
    bodies: list[Mapping[str, Any]] = []
    for kind in _KINDS:
        with answer_deadline():
            try:
                listing = await cluster.client.request_json("GET", f"/apis/{GROUP}/{VERSION}{place}/{kind.lower()}s")
            except NotFoundError:
                continue  # that kind is not installed
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind}
        bodies += [{**head, **item} for item in listing.get("items", ())]
    return bodies


def _report(bodies: Sequence[Mapping[str, Any]], found: Sequence[Finding]) -> Iterator[str]:
    if not bodies:
        yield "No LLMKube objects found."
        return
    for subject, group in itertools.groupby(found, key=lambda one: one.subject):
        yield printable(subject)
        for one in group:
            yield f"  {one.outcome}: {printable(one.message)}"
            if one.keep:
                yield f"    to keep it: {one.keep}"
    yield f"{len(bodies)} objects, {len(found)} findings. Nothing was changed."


def findings(bodies: Sequence[Body]) -> Iterator[Finding]:
    """Yield the findings of each object, in the given order."""
    models = {_key(body): body for body in bodies if body.get("kind") == "Model"}
    for body in bodies:
        kind, subject = str(body.get("kind", "")), f"{body.get('kind')} {'/'.join(_key(body))}"
        if not str(body.get("apiVersion", "")).startswith(f"{GROUP}/"):
            continue
        if kind in _EFFECTS:
            yield Finding(subject, *_EFFECTS[kind])
        elif kind == "InferenceService":
            namespace, _ = _key(body)
            model = models.get((namespace, str(body["spec"].get("modelRef", ""))))
            yield from _service_findings(subject, body, model)


def _service_findings(subject: str, body: Body, model: Body | None) -> Iterator[Finding]:
    if model is None:
        name = body["spec"].get("modelRef")
        yield Finding(subject, REFUSED, f'its Model "{name}" is not among these objects, so only its name is checked')
        yield from _changes(subject, _name_changes(body))
        return
    try:
        service, decoded_model = decode(InferenceService, body), decode(Model, model)
        on_host = decoded_model.spec.hardware.accelerator == METAL
        if on_host:
            check(service, decoded_model)
        else:
            container_plan_for(service, decoded_model, rendered=RENDERED)
            if refusals := service_refusals(service.spec, _SETTINGS):
                yield Finding(subject, REFUSED, refusal_message(refusals))
    except UserError as error:
        yield Finding(subject, REFUSED, str(error))
        return
    if service.spec.runtime in LLAMACPP_NAMES:
        yield from _changes(subject, _llama_changes(body, on_host=on_host))
    yield from _changes(subject, _name_changes(body))
    if not on_host:
        yield from _changes(subject, _pod_changes(body, model))


def _changes(subject: str, found: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield the findings for changes, each with the setting that keeps the previous behaviour."""
    return (Finding(subject, CHANGES, message, keep) for message, keep in found)


def _llama_changes(body: Body, *, on_host: bool) -> Iterator[tuple[str, str]]:
    spec = body["spec"]
    flags = flags_in(spec.get("extraArgs") or ())
    if "contextSize" not in spec and not flags & _CONTEXT:
        there = f"{_GO_METAL_CONTEXT} tokens" if on_host else "the context that the model was trained with"
        keep = f"spec.contextSize: {_GO_METAL_CONTEXT}" if on_host else 'spec.extraArgs: ["--ctx-size", "0"]'
        yield f"context: {there} there, at most {DEFAULT_CONTEXT} here", keep
    if "parallelSlots" not in spec and not flags & _SLOTS and not on_host:
        yield "slots: the engine's default (4) there, 1 here", "spec.parallelSlots: 4"


def _name_changes(body: Body) -> Iterator[tuple[str, str]]:
    name = str(body["metadata"]["name"])
    theirs, ours = name.replace(".", "-"), service_name(name)
    if theirs != ours:
        keep = f"a Service {theirs} of type ExternalName for {ours}"
        yield f"name: clients reach it as {theirs} there, as {ours} here", keep


def _pod_changes(body: Body, model: Body) -> Iterator[tuple[str, str]]:
    spec, gpu = body["spec"], (model["spec"].get("hardware") or {}).get("gpu") or {}
    runtime = spec.get("runtime", "llamacpp")
    if not spec.get("image"):
        yield f"image: another build of {runtime}", "spec.image, or the chart's workloads.images"
    if not spec.get("priorityClassName"):
        level = spec.get("priority", "normal")
        theirs = f"PriorityClass llmkube-{level} there, which preempts ordinary pods"
        message = f"priority: {theirs}; llmkube-service-{level} here, which does not"
        yield message, "the chart's priorityClasses.outrankPods: true"
    if spec.get("multiNode"):
        message = "multiNode: a LeaderWorkerSet here, which is refused while the cluster does not have this kind"
        yield message, "install https://lws.sigs.k8s.io"
    if gpu.get("vendor") == "amd" and gpu.get("runtime") and not gpu.get("resourceName"):
        keep = f"the chart's workloads.gpuResources: {{amd-{gpu['runtime']}: devic.es/dri-render}}"
        yield "GPU: its pods request devic.es/dri-render there, amd.com/gpu here", keep


def _key(body: Body) -> tuple[str, str]:
    metadata = body.get("metadata") or {}
    return str(metadata.get("namespace") or "default"), str(metadata.get("name", ""))


@command("convert")
@manifests_option("names", "A file, a folder, or - for standard input.")
@click.option("--from", "program", type=click.Choice(PROGRAMS), help="Program whose file or store is read.")
@click.option(
    "--accelerator",
    type=click.Choice(ACCELERATORS),
    default="metal" if sys.platform == "darwin" else "cpu",
    help="Accelerator of Models from other programs. Default: metal on a Mac, else cpu.",
)
def convert_manifests(names: tuple[str, ...], program: str | None, accelerator: str) -> None:
    """Convert the files of other programs, or manifests of KubeAI or llmkube.io/v1alpha1, to current objects.

    --from llama-swap reads its YAML, --from llama-presets a file of `llama-server --models-preset`, --from ollama the
    models of an Ollama (OLLAMA_MODELS, else ~/.ollama/models), whose files are used in place. Without --from, manifests
    are read: Models of KubeAI (kubeai.org/v1) and objects of the first API. Settings that cannot be converted are
    listed on standard error; other objects are printed unchanged.

    To apply them: llmkube convert --from llama-swap -f config.yaml | llmkube apply -f -
    """
    if not names and program != "ollama":
        raise click.UsageError("-f is missing; name a file, a folder, or - for standard input")
    printed: list[Mapping[str, Any]] = []
    problems: list[str] = []
    found = _current(names) if program is None else converted(program, names, accelerator, sys.stdin.read)
    for where, objects, remarks, problem in found:
        printed += objects
        problems += [f"{where}: {problem}"] if problem else []
        is_new = remarks is not None
        for sentence in (*(remarks or ()), *(each for body in objects if is_new for each in _refusals(body))):
            click.echo(f"{where}: {printable(sentence)}", err=True)
    if printed:
        click.echo(yaml.safe_dump_all(printed, sort_keys=False, explicit_start=True).rstrip("\n"))
    if problems:
        raise UserError("\n".join(problems))


def _current(names: tuple[str, ...]) -> Iterator[Converted]:
    """Yield objects of the current API unchanged, without remarks, and others converted."""
    for manifest in load_manifests(names, sys.stdin.read):
        if not is_old(manifest.body) and not is_kubeai(manifest.body):
            yield manifest.where, [manifest.body], None, ""
            continue
        try:
            found = (convert_kubeai if is_kubeai(manifest.body) else convert)(manifest.body)
        except UserError as error:
            yield manifest.where, [], None, str(error)
        else:
            of_pods = _service_findings("", found.service, found.model) if is_kubeai(manifest.body) else ()
            refusals = [one.message for one in of_pods if one.outcome == REFUSED]
            yield manifest.where, [found.model, found.service], (*found.remarks, *refusals), ""


def _refusals(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the errors that the API server will report for an object: an old value may be out of bounds now."""
    crd = next(crd for crd in all_crds() if crd["spec"]["names"]["kind"] == body["kind"])
    schema = Schema.parse(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    _, unknown = prune({"spec": body["spec"]}, schema)
    for path in unknown:
        yield f"{path}: is not a field of the {body['kind']}; remove it"
    for error in validate(apply_defaults(body, schema), None, schema):
        yield f"the {body['kind']} will be refused: {error}"
