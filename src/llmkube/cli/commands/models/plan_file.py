"""`llmkube plan`: which models a set of hosts would hold, from a file; no host is asked."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click
import yaml

from llmkube.base.errors import UserError
from llmkube.base.units import format_bytes, format_duration, parse_bytes
from llmkube.cli.catalog.entries import entries, find
from llmkube.cli.commands.models.catalog import shape_of
from llmkube.cli.commands.models.inspect import read_facts
from llmkube.cli.commands.models.plan import MISSING, ON_DEMAND, RESIDENT, Host, Plan, Wanted, make_plan
from llmkube.cli.commands.services.deploy import absolute_source
from llmkube.cli.object_names import name_for
from llmkube.cli.options import output_option
from llmkube.cli.view import formats
from llmkube.cli.view.output import line_width, printable, table, wrapped
from llmkube.cli.view.svg import Bar, chart
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.placement import ACCELERATORS, ACTIVATION_MODES
from llmkube.k8s.fields import camel, wire_fields
from llmkube.programs.options import command
from llmkube.runtimes.llama_fields import draft_of
from llmkube.supervisor.network import host_facts
from llmkube.weights.formats.projector import read_projector
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.source import NO_PROJECTOR
from llmkube.weights.store.blobs import WeightsFile

_COLUMNS: Final = ("SERVICE", "HOST", "NEED", "CONTEXT", "USERS", "STATE")
_Kinds = Mapping[str, Callable[[Any], Any]]


def _spec(given: Any) -> dict[str, Any]:
    if unknown := sorted(dict(given).keys() - {each.key for each in wire_fields(InferenceServiceSpec)}):
        raise ValueError(f"{unknown[0]} is not a field of the InferenceService")
    return dict(given)


_HOST: Final[_Kinds] = {
    "name": str,
    "memory": parse_bytes,
    "accelerator": click.Choice(ACCELERATORS),
    "fraction": click.FloatRange(0, 1, min_open=True),
    "used": parse_bytes,
    "devices": lambda sizes: {name: parse_bytes(size) for name, size in sizes.items()},
    "activation": click.Choice(ACTIVATION_MODES),
    "read": lambda size: click.IntRange(1)(parse_bytes(size)),
}
_COUNT: Final = click.IntRange(1, 1 << 21)
_MODEL: Final[_Kinds] = {"model": str, "name": str, "users": _COUNT, "context": _COUNT, "spec": _spec}


@command("plan")
@click.option("-f", "--filename", "file", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Input.")
@click.option("--svg", type=click.File("w", encoding="utf-8", lazy=False, atomic=True), help="Write a drawing.")
@output_option("json", "yaml")
def plan(*, file: Path, svg: Any, form: str) -> None:
    """Show which models hosts would hold, which would take turns, and what would help those that do not fit.

    FILE has `hosts:` and `models:`, or the manifests of Models and InferenceServices, or both; without hosts, this
    machine is planned. A model is a name of the catalog, a file or a URL, of which only the header is fetched. Exits
    with 1 if a service has no place.
    """
    try:
        documents = [each for each in yaml.safe_load_all(file.read_text("utf-8")) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    chat_models = {each.name: shape_of(each) for each in entries().values() if not each.mode}
    found = make_plan(*read_plan(documents), chat_models)
    if svg:
        svg.write(as_svg(found))
    click.echo(formats.dump(as_data(found), form) if form else "\n".join(as_lines(found)))
    if any(each.state == MISSING for each in found.services):
        sys.exit(1)


def read_plan(documents: list[Any]) -> tuple[list[Host], list[Wanted]]:
    """Return hosts and services from YAML documents, with the headers of their models.

    Raises:
        UserError: A value is invalid; the message names it.
    """
    hosts, wanted, models, services = list[Host](), list[Wanted](), dict[str, Model](), list[InferenceService]()
    for body in documents:
        if not isinstance(body, dict) or not ("kind" in body or body.keys() <= {"hosts", "models"}):
            raise UserError("a document has neither a kind, nor only hosts and models")
        for key in ("hosts", "models"):
            if not isinstance(body.get(key) or [], list):
                raise UserError("must be a list", field=key)
        hosts += [Host(**_read(each, _HOST, "hosts", "name", "memory")) for each in body.get("hosts") or ()]
        wanted += [_short(_read(each, _MODEL, "models", "model")) for each in body.get("models") or ()]
        if body.get("kind") == "Model":
            models[body["metadata"]["name"]] = decode(Model, body)
        elif body.get("kind") == "InferenceService":
            services.append(decode(InferenceService, body).on_hosts)
    for service in services:
        name = service.spec.model_ref
        if (model := models.get(name)) is None:
            raise UserError(f"InferenceService {service.key.name}: there is no Model {name} in the file")
        wanted.append(Wanted(service, model, _header(model.spec.source)[1]))
    here = Host("this machine", host_facts().total_bytes, "metal" if sys.platform == "darwin" else "cpu")
    return hosts or [here], [_complete(each, models) for each in wanted]


def _complete(wanted: Wanted, models: Mapping[str, Model]) -> Wanted:
    """Return a service with the headers of its draft model, its adapters and its projector.

    Raises:
        UserError: One of them is not in the file, or not on this machine.
    """
    spec, projector = wanted.service.spec, wanted.model.spec.mmproj or NO_PROJECTOR
    header, name = wanted.header, f"InferenceService {wanted.service.key.name}"
    if Path(projector).is_absolute():
        header = attrs.evolve(header, projector=read_projector(Path(projector)))
    elif projector != NO_PROJECTOR:
        raise UserError(f"{name}: the projector {projector} is not an absolute path; its memory cannot be planned")

    def beside(reference: str) -> tuple[WeightsFile, GGUFFacts]:
        if not Path(reference).is_absolute() and reference not in models:
            raise UserError(f"{name}: there is no Model {reference} in the file")
        source, facts = _header(models[reference].spec.source if reference in models else reference)
        return WeightsFile(Path(source), facts.size_bytes, None, ""), facts

    draft = beside(reference) if (reference := draft_of(spec)) else None
    return attrs.evolve(wanted, header=header, draft=draft, adapters=[beside(each.model_ref) for each in spec.adapters])


def _read(given: Any, kinds: _Kinds, field: str, *required: str) -> dict[str, Any]:
    shown, found = repr(given), dict[str, Any]()
    given = {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else {}
    for key in (*required, *given):
        try:
            found[key] = kinds[key](given[key])
        except KeyError as error:
            fix = f"write {' and '.join(required)}, and any of {', '.join(kinds)}"
            is_what = "missing" if key in required else "not known"
            raise UserError(f"{shown}: {key}: is {is_what}; {fix}", field=field) from error
        except (UserError, click.BadParameter, AttributeError, TypeError, ValueError) as error:
            raise UserError(f"{shown}: {key}: {error}", field=field) from error
    return found


def _short(given: Mapping[str, Any]) -> Wanted:
    """Return the service of an entry of `models`: `context` is that of each user, `spec` has further fields."""
    (source, header), name = _header(given["model"]), given.get("name") or name_for(given["model"])
    users, metadata = given.get("users", 1), {"metadata": {"name": name}}
    context = {"contextSize": given["context"] * users} if "context" in given else {}
    spec = {"modelRef": name, "parallelSlots": users, **context, **given.get("spec", {})}
    model = decode(Model, {**metadata, "spec": {"source": source}})
    return Wanted(decode(InferenceService, {**metadata, "spec": spec}), model, header, is_bound=False)


def _header(model: str) -> tuple[str, GGUFFacts]:
    """Return the source of a model, a name of the catalog, a file or a URL, and its header."""
    if (entry := find(model)) is not None:
        return entry.source, GGUFFacts.of(shape_of(entry), file_version=3)
    source = absolute_source(model, Path.cwd())
    return source, read_facts(source, None)


def as_data(found: Plan) -> dict[str, Any]:
    """Return a plan as JSON data; sizes in bytes."""
    hosts = [{**attrs.asdict(host), "budget": of.budget.limit_bytes, "free": of.free_bytes} for host, of in found.hosts]
    services = [{camel(key): value for key, value in attrs.asdict(each).items()} for each in found.services]
    return {"hosts": hosts, "services": services}


def as_lines(found: Plan) -> Iterator[str]:
    """Yield a plan as lines of text."""
    for host, of in found.hosts:
        yield printable(f"{host.name}: models may use {of.budget}; {format_bytes(max(0, of.free_bytes))} free")
    rows = [
        (one.name, one.host, format_bytes(one.need_bytes), f"{one.context}", f"{one.slots}", one.state)
        for one in found.services
    ]
    yield f"\n{table(_COLUMNS, rows, width=line_width())}"
    for each in found.services:
        if each.state == ON_DEMAND:
            cost = f"reads {format_bytes(each.load_bytes)}, about {format_duration(each.load_seconds)}"
            yield wrapped(f"{each.name}: a request for it unloads {', '.join(each.displaces)}; the load {cost}")
        elif each.state == MISSING:
            yield wrapped(f"{each.name} does not fit: {each.why}")
            yield from (wrapped(f"  would help: {text}") for text in each.helps)


def as_svg(found: Plan) -> str:
    """Return a plan as a drawing: each host's memory, and the services without a permanent place."""
    bars = []
    for host, of in found.hosts:
        parts = [(each.key.name, each.total_bytes) for each in of.reservations]
        bars.append(Bar(host.name, parts, f"{format_bytes(max(0, of.free_bytes))} free", of.budget.limit_bytes))
    rest = [each for each in found.services if each.state != RESIDENT]
    others = [Bar(each.name, [(each.state, each.need_bytes)], format_bytes(each.need_bytes)) for each in rest]
    return chart("Plan", [("Memory for models", bars), ("Loaded on demand, or without a place", others)])
