"""`llmkube inspect`: the metadata of a local or remote GGUF file, from its header alone."""

import importlib.resources
import os
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio

from llmkube.base.errors import UserError
from llmkube.base.times import utcnow
from llmkube.base.units import format_bytes
from llmkube.cli.commands.services.deploy import absolute_source
from llmkube.cli.options import output_option
from llmkube.cli.view import formats
from llmkube.cli.view.output import printable, shown_source
from llmkube.k8s.fields import camel
from llmkube.programs.config import AgentConfig, HostConfig, load
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import command
from llmkube.supervisor.credentials import read_token_file
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.buckets import BucketAccess
from llmkube.weights.download.remote_header import read_remote_header
from llmkube.weights.estimate.layers import unknown_architecture
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.ollama_model import OllamaModel
from llmkube.weights.source import BucketFile, Builtin, ImageSource, LocalFile, RemoteFile, VolumeSource, parse_source

REMOTE_SECONDS: Final = 120.0
"""Deadline for fetching the header of a remote file, at most 32 MiB."""


@command("inspect")
@click.argument("source", metavar="FILE|URL", type=click.Path())
@click.option("--hf-token-file", type=click.Path(path_type=Path), help="File with a Hugging Face token.")
@output_option("json", "yaml")
def inspect_model(*, source: str, hf_token_file: Path | None, form: str) -> None:
    """Show the metadata of a GGUF file.

    FILE is a path; URL is https://…, hf://ORG/REPO/FILE.gguf, ORG/REPO or s3://BUCKET/KEY (with the environment
    variables of the AWS tools). Only the header of a remote file is fetched, in at most three requests. Exits with 1 if
    no engine can load the file.
    """
    absolute = absolute_source(source, Path.cwd())
    facts = read_facts(absolute, hf_token_file)
    if form:
        click.echo(formats.dump(as_data(facts), form))
        return
    rows = [("file", shown_source(absolute)), *as_rows(facts)]
    width = max(len(label) for label, _ in rows)
    click.echo("\n".join(f"{label:<{width}}  {printable(text)}" for label, text in rows))


def as_data(facts: GGUFFacts) -> dict[str, Any]:
    """Return the known facts as JSON data, with the names of `status.gguf`."""
    named = attrs.asdict(facts, filter=attrs.filters.exclude("shape", "tensors")) | {
        "model_name": facts.name,
        "name": None,
    }
    if facts.adapter is not None:
        named["adapter"] = {camel(name): value for name, value in named["adapter"].items() if value is not None}
    data = {camel(name): value for name, value in named.items() if value not in (None, ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


def as_rows(facts: GGUFFacts) -> list[tuple[str, str]]:
    """Return the known facts as labelled text."""
    heads = f"{facts.head_count} heads" if facts.head_count else ""
    kv_heads = f"{facts.head_count_kv} for keys and values" if facts.head_count_kv else ""
    newer = ", ".join(_type_names(facts.newer_tensor_types))
    rows = [
        ("size", format_bytes(facts.size_bytes)),
        ("name", facts.name),
        ("architecture", facts.architecture),
        ("quantization", "not known" if newer else facts.quantization),
        ("context", f"{facts.context_length} tokens" if facts.context_length else None),
        ("layers", f"{facts.layer_count}" if facts.layer_count else None),
        ("embedding", f"{facts.embedding_size}" if facts.embedding_size else None),
        ("attention", ", ".join(each for each in (heads, kv_heads) if each)),
        *_adapter_rows(facts),
        ("license", facts.license),
        ("tensors", str(facts.tensor_count)),
        ("parts", f"{facts.split_count} files; this is the first" if facts.split_count > 1 else None),
        ("version", f"GGUF {facts.file_version}"),
        ("note", unknown_architecture(facts.architecture)),
        ("unknown", f"tensor types {newer}, which a newer engine may support" if newer else None),
    ]
    return [(label, text) for label, text in rows if text]


def _adapter_rows(facts: GGUFFacts) -> list[tuple[str, str | None]]:
    adapter = facts.adapter
    if adapter is None:
        return []
    alpha = "" if adapter.alpha is None else f", alpha {adapter.alpha:g}"
    kind = f"{adapter.kind or 'of an unknown type'}, rank {adapter.rank}{alpha}"
    return [("adapter", kind), ("base", adapter.base or f"a model of the architecture {facts.architecture}")]


def _type_names(numbers: tuple[int, ...]) -> list[str]:
    """Return tensor types newer than our table, with the names that the installed gguf package knows."""
    if not numbers:
        return []
    # Imported here: it takes half a second (numpy), and is rarely needed.
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 (see above)

    names = {kind.value: kind.name for kind in GGMLQuantizationType}
    return [f"{number} ({names[number]})" if number in names else str(number) for number in numbers]


def read_facts(source: str, hf_token_file: Path | None) -> GGUFFacts:
    """Read the header of a local file, a remote file or a built-in model."""
    found = local_facts(source)
    if isinstance(found, GGUFFacts):
        return found
    return trio.run(remote_facts, found, load("agent", AgentConfig, {"hf_token_file": hf_token_file}))


def local_facts(source: str) -> GGUFFacts | RemoteFile:
    """Read the header of a local file or a built-in model; return the parsed source of a remote file. Blocks."""
    if "://" not in source and (path := Path(source)).is_absolute():
        return _local(path)
    try:
        parsed = parse_source(source)
    except UserError as exc:
        if "://" not in source:
            raise CommandError(f"there is no file {source}, and it is not a URL", ExitCode.NOT_FOUND) from exc
        raise
    if isinstance(parsed, LocalFile):
        return _local(Path(parsed.path))
    if isinstance(parsed, Builtin):
        packaged = importlib.resources.files("llmkube.weights") / "builtin" / f"{parsed.name}.gguf"
        with importlib.resources.as_file(packaged) as file:
            return _local(file)
    if isinstance(parsed, VolumeSource | ImageSource | OllamaModel):
        message = "cannot be inspected from here; name a file, or an https://, hf:// or s3:// URL"
        raise CommandError(f"{parsed.redacted} {message}")
    return parsed


def _local(path: Path) -> GGUFFacts:
    if not path.exists():
        raise CommandError(f"there is no file {path}", ExitCode.NOT_FOUND)
    return read_header(path)


async def remote_facts(source: RemoteFile, config: HostConfig) -> GGUFFacts:
    """Read the header of a remote file."""
    token = None if config.hf_token_file is None else read_token_file(config.hf_token_file)
    with trio.move_on_after(REMOTE_SECONDS):
        return await read_remote_header(
            source,
            policy=AddressPolicy(from_operator=True),
            utcnow=utcnow,
            token=token,
            access=BucketAccess.read(os.environ) if isinstance(source, BucketFile) else None,
            endpoint=config.hub_endpoint,
            egress=config.egress(),
        )
    raise CommandError(f"{source.redacted}: header not received within {REMOTE_SECONDS:g} s", ExitCode.TIMED_OUT)
