"""`llmkube deploy`: serve a model from a source, and change how it is served.

The objects are made from the command line alone and applied by server-side apply: running the same command again
changes nothing, and a flag that is left out the next time removes its setting.
"""

import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click

from llmkube.base.errors import UserError
from llmkube.base.times import utcnow
from llmkube.cli.catalog.entries import CHECKS, Entry, find, hint_for
from llmkube.cli.commands.services.field_flags import FLAGS, FieldFlag, field_options, given_fields, put
from llmkube.cli.commands.services.readiness_wait import (
    is_stopped,
    load_request,
    print_on_interrupt,
    typed_command,
    wait_until_ready,
)
from llmkube.cli.local_files import allow_folder
from llmkube.cli.object_names import Target, check_new_name, get_object
from llmkube.cli.object_names import find as find_object
from llmkube.cli.options import catalog_or_services, cluster_options, models, services
from llmkube.cli.target_cluster import ANSWER_SECONDS, Cluster, ClusterFlags, answer_deadline, run_against
from llmkube.cli.view import formats
from llmkube.cli.view.describe import ignored_fields, model_note
from llmkube.cli.view.locations import find_hosts
from llmkube.cli.view.output import wrapped
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.pairing import GENERIC, RUNTIMES
from llmkube.k8s.crd.placement import ACCELERATORS
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.request import APPLY_PATCH, object_path
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import LOAD_REQUESTED_AT
from llmkube.programs.failures import CommandError
from llmkube.programs.options import NumberRange, command, complete_paths
from llmkube.runtimes.devices import preferred
from llmkube.weights.source import parse_source

FIELD_MANAGER: Final = "llmkube-deploy"

CATALOG_CONTEXT: Final = 8192
"""Context size of deployments from the catalog: enough for a conversation, and small next to the weights."""

_VENDORS: Final = {"cuda": "nvidia", "rocm": "amd", "intel": "intel"}
_POD_RUNTIMES: Final = frozenset(name for name, facts in RUNTIMES.items() if not facts.hosts or name == GENERIC)
_LOCAL: Final = ("./", "../", "~")


@command("deploy")
@click.argument("name", shell_complete=catalog_or_services)
@click.option(
    "-s",
    "--source",
    shell_complete=complete_paths,
    help="Source of the weights: a path, https://…, hf://ORG/REPO/FILE.gguf, ORG/REPO[:Q4_K_M], builtin://demo.",
)
@click.option("--model", "model_name", metavar="NAME", shell_complete=models, help="Serve an existing Model.")
@click.option(
    "--accelerator",
    type=click.Choice(ACCELERATORS),
    help="Accelerator to run on. Default: one that a live host serves, else metal on a Mac and cpu elsewhere.",
)
@click.option(
    "--draft", metavar="FILE|NAME", help="Draft model for speculative decoding: a file, or an existing Model."
)
@click.option("--gpu", is_flag=True, help="Run on a GPU: the kind that a live host serves, else cuda.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="Environment variable of the engine. Repeatable.")
@click.option(
    "--api-key-secret",
    metavar="NAME[/KEY]",
    help="Secret with API keys, one on each line of KEY (default api-key): requests without one of them are refused.",
)
@click.option(
    "--lora",
    metavar="[NAME=]FILE[:SCALE]",
    multiple=True,
    shell_complete=complete_paths,
    help="LoRA adapter: for every request, or for those with NAME as their model. FILE is as for --source. Repeatable.",
)
@click.option(
    "--engine-option", metavar="NAME=VALUE", multiple=True, help="Option of --engine, from config.toml. Repeatable."
)
@field_options(FLAGS)
@click.option("--wait/--no-wait", default=True, help="Wait until it is Ready, or has failed. Default: wait.")
@click.option("--timeout", type=NumberRange(min=0), default=1800.0, help="Seconds to wait with --wait. Default: 1800.")
@click.option("--dry-run", is_flag=True, help="Print the objects as YAML and apply nothing.")
@cluster_options()
def deploy(*, name: str, wait: bool, timeout: float, dry_run: bool, where: ClusterFlags, **flags: Any) -> None:
    """Serve a model under NAME, or change how NAME is served.

    The weights come from --source or an existing --model; without either, NAME is a model of `llmkube catalog list`.

    Applies an InferenceService and, without --model, a Model of that name. Running the same command again changes
    nothing; leaving out a flag removes its setting. --context is the kubeconfig's context; with a number, it is
    --context-size.
    """
    where, flags["context_size"] = split_context(where, flags["context_size"])
    request = read_request(name, flags, Path.cwd())

    if request.quantization:
        click.echo(wrapped(f"{name}: {request.source} ({CHECKS[_catalog_entry(name).checked]})", err=True), err=True)

    async def action(cluster: Cluster) -> None:
        with answer_deadline():
            manifests = await manifests_of(cluster, request)
        if dry_run:
            click.echo("\n---\n".join(formats.dump(each, "yaml") for each in manifests))
            return
        with answer_deadline():
            applied = await apply_all(cluster, request, manifests)
        for done in applied:
            click.echo(f"{done.kind} {done.key} {done.change}", err=wait)
        if wait:
            key = Key(cluster.namespace, name)
            interrupt.note = (
                f"The deployment continues without this command; watch it with `{typed_command('status', key)} "
                f"--watch`, end it with `{typed_command('delete', key)}`"
            )
            await _wait(cluster, key, applied, timeout, replicas=request.value_at("spec.replicas"))

    with print_on_interrupt() as interrupt:
        run_against(where, action, changes=not dry_run)


@command("cp")
@click.argument("name", shell_complete=services)
@click.argument("new_name", metavar="NEW_NAME")
@cluster_options()
def copy(*, name: str, new_name: str, where: ClusterFlags) -> None:
    """Serve the model of NAME under a NEW_NAME too, with the same settings and without another download.

    The copy is a service of its own, with an engine of its own: `llmkube deploy` changes one without the other. NAME is
    an InferenceService, or a Model that `llmkube pull` has created. Further names are not copied:
    aliases, presets and adapters with a name.
    """
    check_new_name(new_name)

    async def action(cluster: Cluster) -> None:
        source, target = Key(cluster.namespace, name), Key(cluster.namespace, new_name)
        if await find_object(cluster.client, InferenceService, target) is not None:
            raise CommandError(f"InferenceService {target} exists; `{typed_command('delete', target)}` removes it")
        try:
            answer = await cluster.client.get_json(object_path(InferenceService.RESOURCE, source))
            spec = {field: value for field, value in answer["spec"].items() if field not in ("aliases", "presets")}
            if "adapters" in spec:
                spec["adapters"] = [each for each in spec["adapters"] if "name" not in each]
        except NotFoundError:
            await get_object(cluster.client, Target(Model, name), source)
            spec = {"modelRef": name}
        manifest = empty_object(InferenceService, target) | {"spec": spec}
        await cluster.client.apply(InferenceService, manifest, field_manager=FIELD_MANAGER)
        click.echo(f"InferenceService {source} copied to {target}")

    run_against(where, action, seconds=ANSWER_SECONDS, changes=True)


@attrs.frozen
class DeployRequest:
    """The options of the command line, checked as far as possible without a cluster."""

    name: str
    source: str
    model_name: str
    accelerator: str | None
    gpu: bool
    quantization: str
    env: tuple[tuple[str, str], ...]
    api_keys: Mapping[str, str]
    fields: Mapping[FieldFlag, Any]
    adapters: tuple[tuple[str, Mapping[str, str]], ...] = ()
    draft: str = ""
    engine_options: tuple[tuple[str, str], ...] = ()

    @property
    def kinds(self) -> tuple[type[Any], ...]:
        """The kinds of `manifests`, in the same order."""
        return (*[Model] * (len(self.adapters) + ("/" in self.draft) + bool(self.source)), InferenceService)

    def value_at(self, path: str) -> Any:
        """Return the value of the flag for a field; None if it was not given."""
        return next((value for field, value in self.fields.items() if field.path == path), None)

    def manifests(self, namespace: str, served: Collection[str]) -> list[dict[str, Any]]:
        """Return the objects to apply.

        Args:
            namespace: Namespace of the objects.
            served: Accelerators that live hosts serve.
        """
        objects = {kind: empty_object(kind, Key(namespace, self.name)) for kind in dict.fromkeys(self.kinds)}
        if self.source:
            in_pods = self.value_at("spec.runtime") in _POD_RUNTIMES and self.value_at("spec.engine.name") is None
            accelerator = self.accelerator or choose_accelerator(served, gpu=self.gpu, in_pods=in_pods)
            put(objects[Model], "spec.source", self.source)
            if self.quantization:
                put(objects[Model], "spec.quantization", self.quantization)
            put(objects[Model], "spec.hardware.accelerator", accelerator)
            if self.gpu:
                put(objects[Model], "spec.hardware.gpu.enabled", True)
                if accelerator in _VENDORS:
                    put(objects[Model], "spec.hardware.gpu.vendor", _VENDORS[accelerator])
                    put(objects[Model], "spec.hardware.gpu.count", 1)
        service = objects[InferenceService]
        put(service, "spec.modelRef", self.name if self.source else self.model_name)
        if self.env:
            put(service, "spec.env", [{"name": name, "value": value} for name, value in self.env])
        if self.api_keys:
            put(service, "spec.apiKeySecretRef", dict(self.api_keys))
        for field, value in self.fields.items():
            put(objects[field.kind], field.path, value)
        if self.engine_options:
            put(service, "spec.engine.options", dict(self.engine_options))
        others = self._companions(namespace, service)
        return [*others, *(objects[kind] for kind in self.kinds[len(others) :])]

    def _companions(self, namespace: str, service: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the Models of adapters and of the draft, and refer to them in the service."""
        sources = {f"lora-{at}": source for at, (source, _) in enumerate(self.adapters, 1)}
        entries = [{"modelRef": f"{self.name}-lora-{at}", **entry} for at, (_, entry) in enumerate(self.adapters, 1)]
        if entries:
            put(service, "spec.adapters", entries)
        if self.draft:
            named = f"{self.name}-draft" if "/" in self.draft else self.draft
            put(service, "spec.speculativeDecoding", {"type": "draft", "draftModelRef": named})
            sources |= {"draft": self.draft} if "/" in self.draft else {}
        keys = {Key(namespace, f"{self.name}-{suffix}"): source for suffix, source in sources.items()}
        return [empty_object(Model, key) | {"spec": {"source": source}} for key, source in keys.items()]


def choose_accelerator(
    served: Collection[str], *, gpu: bool, in_pods: bool = False, platform: str = sys.platform
) -> str:
    """Return the default accelerator: the best one that a live host serves, else that of this machine.

    A runtime that only runs in pods ignores the accelerators of hosts.
    """
    if in_pods:
        return "cuda" if gpu else "cpu"
    if (best := preferred(served)) != "cpu":
        return best
    if gpu:
        return "cuda"
    if "cpu" in served:
        return "cpu"
    return "metal" if platform == "darwin" else "cpu"


def absolute_source(text: str, folder: Path) -> str:
    """Return a source with an absolute path if it looks like a path, as `models/x.gguf`, or is a file here."""
    is_file = text.endswith(".gguf") or (folder / text).is_file()
    if text.startswith(_LOCAL) or (not text.startswith("/") and "://" not in text and is_file):
        return os.path.normpath(folder / Path(text).expanduser())
    return text


def split_context(where: ClusterFlags, context_size: int | None) -> tuple[ClusterFlags, int | None]:
    """Return the flags of the cluster and the context size: `--context 4096` is a size, as in other programs."""
    if context_size is None and where.context is not None and where.context.isdecimal():
        return attrs.evolve(where, context=None), int(where.context)
    return where, context_size


@attrs.frozen
class ApplyResult:
    """An applied object; `change` is `created`, `configured` or `unchanged`."""

    kind: str
    key: Key
    change: str


async def manifests_of(cluster: Cluster, request: DeployRequest) -> list[dict[str, Any]]:
    """Return the objects to apply, for an accelerator that a live host serves."""
    hosts = await find_hosts(cluster, utcnow()) if request.accelerator is None and request.source else None
    return request.manifests(cluster.namespace, {each for host in hosts or () for each in host.accelerators})


async def apply_all(cluster: Cluster, request: DeployRequest, manifests: Sequence[dict[str, Any]]) -> list[ApplyResult]:
    """Apply the objects of a deployment, and let this user's `llmkube up` serve the files that they name."""
    for path in (each["spec"].get(field, "") for each in manifests for field in ("source", "mmproj")):
        allow_folder(cluster, path)
    for kind, each in zip(request.kinds, manifests, strict=True):
        await _dry_run_apply(cluster, kind, each)  # a rejected service must not leave its Model behind
    return [await _apply(cluster, kind, each) for kind, each in zip(request.kinds, manifests, strict=True)]


def read_request(name: str, flags: Mapping[str, Any], folder: Path) -> DeployRequest:
    """Return a deployment from the options of the command line; `folder` is that of relative paths.

    Raises:
        click.ClickException: The options are invalid.
    """
    source, model_name = flags["source"], flags["model_name"]
    check_new_name(name)
    if source and model_name:
        raise click.UsageError("--source (weights to serve) and --model (an existing Model) exclude each other")
    fields = given_fields(FLAGS, _with_engine(flags))
    quantization = ""
    if not source and not model_name:
        entry = _catalog_entry(name)
        source, quantization = entry.source, entry.quantization
        fields = _catalog_fields(entry) | fields
    if source:
        source = absolute_source(source, folder)
        try:
            parse_source(source)
        except UserError as exc:
            raise click.BadParameter(str(exc).removeprefix("spec.source: "), param_hint="--source") from exc
    else:
        model_flags = [field.flag for field in fields if field.kind is Model]
        model_flags += [flag for flag in ("--accelerator", "--gpu") if flags[flag.removeprefix("--")]]
        if model_flags:
            message = f"{model_flags[0]} is a setting of the Model, which --model {model_name} does not change"
            raise click.UsageError(f"{message}; edit that Model, or use --source")
    if flags["gpu"] and flags["accelerator"] == "cpu":
        raise click.UsageError("--gpu and --accelerator cpu exclude each other; leave one out")
    for field in fields:
        if field.path == "spec.mmproj":
            fields[field] = absolute_source(fields[field], folder)
    env = tuple(_variable(text) for text in flags["env"])
    api_keys = _secret_key(flags["api_key_secret"])
    request = DeployRequest(
        name, source or "", model_name or "", flags["accelerator"], flags["gpu"], quantization, env, api_keys, fields
    )
    draft = absolute_source(flags["draft"] or "", folder)
    options = tuple(_variable(text, "--engine-option") for text in flags["engine_option"])
    adapters = tuple(_adapter(each, folder) for each in flags["lora"])
    return attrs.evolve(request, adapters=adapters, draft=draft, engine_options=options)


def _with_engine(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the flags, with the runtime and the format that --engine implies."""
    if flags["engine"] is None:
        if flags["engine_option"]:
            raise click.UsageError("--engine-option needs --engine, the name of an engine in the host's config.toml")
        return flags
    if flags["runtime"] not in {None, GENERIC}:
        raise click.UsageError(f"--engine needs the runtime {GENERIC}, not {flags['runtime']}; leave --runtime out")
    implied = "custom" if flags["source"] and not flags["source"].endswith(".gguf") else None
    return {**flags, "runtime": GENERIC, "format": flags["format"] or implied}


def _catalog_entry(name: str) -> Entry:
    entry = find(name)
    if entry is not None:
        return entry
    raise click.UsageError(
        f"the catalog has no model {name} ({hint_for(name)}); specify --source (weights to serve) or --model (an "
        "existing Model)"
    )


def _catalog_fields(entry: Entry) -> dict[FieldFlag, Any]:
    """Return the fields that the catalog sets; flags take precedence."""
    wanted = {
        "spec.sha256": entry.sha256,
        "spec.mode": entry.mode,
        "spec.contextSize": min(CATALOG_CONTEXT, entry.context),
    }
    return {field: wanted[field.path] for field in FLAGS if wanted.get(field.path)}


_LORA: Final = re.compile(r"(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._@+-]*)=)?(?P<source>.*?)(?::(?P<scale>\d+(?:\.\d+)?))?")


def _adapter(text: str, folder: Path) -> tuple[str, Mapping[str, str]]:
    """Return the source of an adapter, and the other fields of the service's entry for it."""
    found = _LORA.fullmatch(text)
    assert found is not None, "it also matches the empty string"
    file, colon, scale = found["source"].rpartition(":")
    if colon and (folder / Path(file).expanduser()).is_file():
        raise click.BadParameter(f'the scale "{scale}" of {file} is no number; write {file}:0.5', param_hint="--lora")
    source = absolute_source(found["source"], folder)
    try:
        parse_source(source)
    except UserError as exc:
        raise click.BadParameter(str(exc).removeprefix("spec.source: "), param_hint="--lora") from exc
    return source, {name: each for name in ("name", "scale") if (each := found[name]) is not None}


def _variable(text: str, flag: str = "--env") -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f'"{text}" is not NAME=VALUE', param_hint=flag)
    return name, value


def _secret_key(text: str | None) -> Mapping[str, str]:
    """Parse `NAME[/KEY]` into the value of the field; the schema has a default for KEY."""
    if text is None:
        return {}
    name, slash, key = text.partition("/")
    if not name or (slash and not key) or "/" in key:
        raise click.BadParameter(f'"{text}" is not NAME or NAME/KEY', param_hint="--api-key-secret")
    return {"name": name, "key": key} if slash else {"name": name}


def empty_object(kind: type[Any], key: Key) -> dict[str, Any]:
    """Return an object without a spec."""
    resource = kind.RESOURCE
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": key.name, "namespace": key.namespace},
    }


async def _dry_run_apply(cluster: Cluster, kind: type[Any], manifest: dict[str, Any]) -> None:
    path = object_path(kind.RESOURCE, Key.of(manifest))
    params = {"fieldManager": FIELD_MANAGER, "force": "true", "dryRun": "All"}
    await cluster.client.request_json("PATCH", path, params=params, body=manifest, content_type=APPLY_PATCH)


async def _apply(cluster: Cluster, kind: type[Any], manifest: dict[str, Any]) -> ApplyResult:
    key = Key.of(manifest)
    before = await find_object(cluster.client, kind, key)
    if isinstance(before, InferenceService):  # loaded or retried now, so that an error is seen here
        model = await find_object(cluster.client, Model, Key(key.namespace, before.spec.model_ref))
        earlier = {name: text for name, text in before.metadata.annotations.items() if name == LOAD_REQUESTED_AT}
        manifest["metadata"]["annotations"] = earlier | load_request(before, model)
    after = await cluster.client.apply(kind, manifest, field_manager=FIELD_MANAGER)
    if before is None or before.metadata.uid != after.metadata.uid:
        return ApplyResult(kind.RESOURCE.kind, key, "created")
    # The generation changes with the spec only; a program may have written the status in the meantime.
    change = "unchanged" if before.metadata.generation == after.metadata.generation else "configured"
    return ApplyResult(kind.RESOURCE.kind, key, change)


async def _wait(
    cluster: Cluster, key: Key, applied: Sequence[ApplyResult], seconds: float, *, replicas: int | None
) -> None:
    written = {each.kind for each in applied if each.change != "unchanged"}
    edited = any(each.change == "configured" for each in applied)
    service = await wait_until_ready(cluster, key, seconds, written=written, edited=edited)
    if is_stopped(service):
        message = f"InferenceService {key} is {service.status.phase}"
        if replicas == 0:
            click.echo(message)
            return
        fix = "set spec.suspend to false" if service.spec.suspend else f"`{typed_command('scale', key)} 1`"
        raise CommandError(f"{message}, as set in its spec; start it: {fix}")
    click.echo(wrapped(f"InferenceService {key} is {service.status.phase} at {service.status.endpoint}"))
    model = await find_object(cluster.client, Model, Key(key.namespace, service.spec.model_ref))
    for message in filter(None, (ignored_fields(service), model_note(model))):
        click.echo(wrapped(f"Note: {message}", err=True), err=True)
    click.echo(next_step(service), err=True)


def next_step(service: InferenceService) -> str:
    """Return how to use a service in its mode."""
    mode = service.status.mode or service.spec.mode or "chat"
    if mode == "chat":
        return f"Talk to it: {typed_command('chat', service.key)}"
    return f"It serves {mode} through the OpenAI API: see docs/guides/clients.md"
