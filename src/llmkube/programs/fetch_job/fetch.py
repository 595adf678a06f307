"""`llmkube fetch`: the program of a Model's Job, which fetches weights into a folder for engines.

```
<model store>/…            downloads, verified and resumable; private to the user that fetches
<folder>/model.gguf        hard links to complete downloads, readable by every engine
<folder>/model-00001-of-…  the parts of a split model, by the names that llama.cpp expects
<folder>/mmproj.gguf       a file named with --beside
<folder>/<version>/…       the same with --versions: the newest, and the one before, which engines may still have open
```

The folder appears once it is complete. Its content is described in the container's termination log, as JSON: path,
size, digest and facts of the header; or reason and message of a failure.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio

from llmkube.base.errors import LLMKubeError, UserError, first_leaf
from llmkube.base.private_files import replaced_folder
from llmkube.base.settings import resolve
from llmkube.base.times import utcnow
from llmkube.base.units import format_bytes
from llmkube.k8s.wire.termination_message import TERMINATION_LOG
from llmkube.programs.config import EgressConfig
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.fetch_job.volume import (
    Gauge,
    adopt,
    failure_message,
    gguf_status_of,
    inspect_file,
    prune_folders,
    run_gauge,
    write_result,
)
from llmkube.programs.options import command, settings_options
from llmkube.programs.program import open_service_nursery
from llmkube.supervisor.credentials import read_token_file
from llmkube.weights.address_policy import AddressPolicy, parse_networks
from llmkube.weights.download.buckets import BucketAccess
from llmkube.weights.download.downloader import open_downloader
from llmkube.weights.download.fetch import fetch
from llmkube.weights.download.hugging_face import ENDPOINT
from llmkube.weights.errors import DigestMismatchError, FetchError, FileSetError, SourceError, WeightsError
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.source import BucketFile, Builtin, HubFile, LocalFile, Remote, Source, WebFile, parse_source, pick
from llmkube.weights.source import beside as file_beside
from llmkube.weights.split_names import part_names
from llmkube.weights.store.blobs import DIGEST, Store, WeightsFile, open_store
from llmkube.weights.store.cache import remove_unreferenced
from llmkube.weights.store.index import find_weights, key_of, name_of, numbered_part_names, read_record

_ERROR_CHARS: Final = 300
_MODEL_NAME: Final = "model.gguf"
_VERSION_CHARS: Final = 16
_TOKEN_VARIABLE: Final = "HF_TOKEN"  # noqa: S105 (the name of a variable, not a token)


@attrs.frozen(kw_only=True)
class FetchPlan(EgressConfig):
    """A validated request; the attributes without a description are those of the options.

    Attributes:
        sources: Sources to fetch: the engine's main file first, then further files.
        folder: Folder in which to publish the files, or their versions.
        policy: Addresses that sources may resolve to.
        token: Token for Hugging Face.
        access: Credentials for buckets.
    """

    sources: tuple[Source, ...]
    folder: Path
    model_store: Path
    policy: AddressPolicy
    token: str | None = attrs.field(repr=False)
    access: BucketAccess
    beside: tuple[str, ...]
    sha256: str | None
    fresh: bool
    versions: bool
    hub_endpoint: str
    adopted: Path | None
    progress_port: int | None


@command("fetch")
@click.argument("source", envvar="LLMKUBE_SOURCE", required=False)
@click.option("--to", "folder", type=click.Path(path_type=Path), help="Folder that engines read.")
@click.option("--model-store", type=click.Path(path_type=Path), help="Folder for downloads, on the same disk as --to.")
@click.option("--file", "files", metavar="NAME", multiple=True, help="File of a repository, like spec.files.")
@click.option("--beside", metavar="NAME", multiple=True, help="Another file of the repository, such as a projector.")
@click.option("--sha256", metavar="HEX", help="SHA-256 digest that the file must have.")
@click.option("--fresh", is_flag=True, help="Fetch again if the source has changed; keep the file if that is unknown.")
@click.option("--versions", is_flag=True, help="Store each version in its own folder below --to.")
@click.option("--hf-token-file", type=click.Path(path_type=Path), help="File with a Hugging Face token.")
@click.option("--hub-endpoint", default=ENDPOINT, help="URL of Hugging Face or a mirror.")
@click.option("--allow-private-sources", metavar="CIDR", multiple=True, help="Private network to fetch from.")
@click.option("--adopt", "adopted", type=click.Path(path_type=Path), help="Folder of an earlier cache to adopt.")
@click.option("--progress-port", type=click.IntRange(1, 65535), help="Port on which the progress is reported.")
@click.option("--inspect", "inspected", type=click.Path(path_type=Path), help="Only read the header of this file.")
@click.option("--prune", "keys", metavar="KEY", multiple=True, help="Only remove this folder below --to.")
@click.option(
    "--termination-log", type=click.Path(path_type=Path), default=TERMINATION_LOG, help="File for the result."
)
@settings_options(EgressConfig)
def fetch_weights(*, termination_log: Path, **options: Any) -> None:
    """Fetch a model into a folder, as a Model's Job does.

    Instead of fetching a SOURCE, --inspect reads the header of an existing file, and --prune removes folders below
    --to, with the files in the store that only they use.

    SOURCE can be set as LLMKUBE_SOURCE, which a process list does not show. The token for Hugging Face is read from a
    file or from HF_TOKEN; keys for a bucket from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN),
    its location from AWS_REGION, or from AWS_ENDPOINT_URL for a server other than AWS; CA certificates to trust besides
    the system's from --ca-file and SSL_CERT_FILE. Exit code 2: the request is invalid, and a retry would fail again; 1:
    the network or the disk failed, and the partial download is kept.
    """
    options |= attrs.asdict(resolve(EgressConfig, flags=options, environ=os.environ))
    if sum((options["source"] is not None, options["inspected"] is not None, bool(options["keys"]))) != 1:
        raise click.UsageError("exactly one of SOURCE, --inspect and --prune is required")
    try:
        result = _run(**options)
    except* LLMKubeError as group:
        error = first_leaf(group)
        assert isinstance(error, LLMKubeError)
        write_result(termination_log, failure_message(error))
        code = ExitCode.USAGE if isinstance(error, UserError) else ExitCode.FAILED
        raise CommandError(str(error), code) from group
    write_result(termination_log, result)
    where = f"{options['folder']}: " if options["folder"] is not None else ""
    click.echo(f"{where}{_summary(result)}")


def _run(*, source: str | None, inspected: Path | None, keys: tuple[str, ...], **options: Any) -> dict[str, Any]:
    if inspected is not None:
        return inspect_file(inspected)
    if options["folder"] is None or options["model_store"] is None:
        raise click.UsageError("--to and --model-store are required, except with --inspect")
    if source is None:
        return prune_folders(options["folder"], options["model_store"], keys)
    sources = _sources(source, options.pop("files"), options["beside"])
    if (sha256 := options["sha256"]) is not None and not DIGEST.fullmatch(sha256.lower()):
        raise DigestMismatchError(f"{sha256!r} is not a digest of 64 hex digits")
    policy = AddressPolicy(allowed=parse_networks(options.pop("allow_private_sources")))
    token, access = _token(options.pop("hf_token_file")), BucketAccess.read(os.environ)
    return trio.run(fetch_all, FetchPlan(sources=sources, policy=policy, token=token, access=access, **options))


async def fetch_all(plan: FetchPlan) -> dict[str, Any]:
    """Fetch all sources, publish them in the folder, and return the result.

    Raises:
        WeightsError: The request is invalid; see `weights.errors`.
        FetchError: The disk or the network failed.
    """
    gauge = Gauge(len(plan.sources))
    async with open_service_nursery() as nursery:
        if plan.progress_port is not None:
            nursery.start_soon(run_gauge, gauge, plan.progress_port)
        return await _fetch_all(plan, gauge)
    raise AssertionError("a nursery swallows no error")


async def _fetch_all(plan: FetchPlan, gauge: Gauge) -> dict[str, Any]:
    limiter = trio.CapacityLimiter(4)
    store = await trio.to_thread.run_sync(open_store, plan.model_store, limiter=limiter)

    async def token() -> str | None:
        await trio.lowlevel.checkpoint()
        return plan.token

    async def access() -> BucketAccess:
        await trio.lowlevel.checkpoint()
        return plan.access

    async with open_downloader(
        store,
        limiter=limiter,
        utcnow=utcnow,
        rng=random.Random(),  # noqa: S311 - jitter, not a secret
        endpoint=plan.hub_endpoint,
        egress=plan.egress(),
    ) as downloader:
        found, fetch_error = [], ""
        for index, source in enumerate(plan.sources):
            gauge.begin(index + 1)
            expected = plan.sha256 if index == 0 else None
            if plan.adopted is not None and isinstance(source, Remote):
                await adopt(plan.adopted, source, store, sha256=expected, progress=gauge, limiter=limiter)
            try:
                file = await fetch(
                    source,
                    store,
                    sha256=expected,
                    progress=gauge,
                    limiter=limiter,
                    download=partial(
                        downloader.fetch, token=token, access=access, policy=plan.policy, fresh=plan.fresh
                    ),
                )
            except (WeightsError, FetchError) as error:
                file = await trio.to_thread.run_sync(_existing, plan, store, source, error, limiter=limiter)
                fetch_error = str(error)[:_ERROR_CHARS]
                click.echo(f"fetch failed: {fetch_error}; the existing file is kept", err=True)
            found.append(file)
    return await trio.to_thread.run_sync(_publish, plan, store, found, fetch_error, limiter=limiter)


def publish(folder: Path, files: Mapping[str, Path]) -> None:
    """Create a folder with hard links to complete files, readable by every user; it appears once it is complete.

    Raises:
        FetchError: The disk fails, or does not support hard links.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if _is_published(folder, files):
            return
        with replaced_folder(folder) as fresh:  # an engine keeps the files that it has open
            for name, file in files.items():
                link = fresh / name
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(file, link, follow_symlinks=False)
                if link.stat().st_mode & 0o444 != 0o444:  # files of another user cannot be changed, only read
                    link.chmod(0o644)
            for inner in (fresh, *(path for path in fresh.rglob("*") if path.is_dir())):
                inner.chmod(0o755)
    except OSError as exc:
        raise FetchError(f"cannot write to {folder}: {exc.strerror or exc}; it must be on the store's disk") from exc


def _existing(plan: FetchPlan, store: Store, source: Source, error: WeightsError | FetchError) -> WeightsFile:
    """Return the existing file of a source that could not be revalidated, if the request permits that.

    Raises:
        WeightsError: No file exists, or the request does not permit it: the original error.
        FetchError: The same.
    """
    server = plan.access.server if isinstance(source, BucketFile) else None
    found = None
    if plan.fresh and isinstance(source, Remote | Builtin):
        found = find_weights(store, name_of(store, source), server)
    if not isinstance(found, WeightsFile):
        raise error
    return found


def _remove_old_versions(folder: Path, newest: str) -> None:
    """Remove all versions but the newest and the one before it."""
    others = [path for path in folder.iterdir() if path.name != newest and not path.name.startswith(".")]
    for path in sorted(others, key=lambda path: path.lstat().st_mtime, reverse=True)[1:]:
        shutil.rmtree(path, ignore_errors=True)


def _publish(plan: FetchPlan, store: Store, found: Sequence[WeightsFile], fetch_error: str) -> dict[str, Any]:
    facts = read_header(found[0].path)  # before anything is published: no engine could load an invalid file
    parts = part_names(found[0].path.name)
    first = _MODEL_NAME if len(parts) == 1 else parts[0]
    files = {first: found[0].path} if len(parts) == 1 else {part: found[0].path.with_name(part) for part in parts}
    files |= {name: one.path for name, one in zip(plan.beside, found[1:], strict=True)}
    version = hashlib.sha256("\n".join(one.identity for one in found).encode()).hexdigest()[:_VERSION_CHARS]
    publish(plan.folder / version if plan.versions else plan.folder, files)
    if plan.versions:
        _remove_old_versions(plan.folder, version)
        remove_unreferenced(store)
    source = plan.sources[0]
    record = read_record(store, key_of(name_of(store, source))) if isinstance(source, Remote | Builtin) else None
    return {
        "path": f"{version}/{first}" if plan.versions else first,
        "sizeBytes": sum(one.size_bytes for one in found),
        "sha256": found[0].sha256 or "",
        "files": list(files)[:16],
        "gguf": gguf_status_of(facts),
        **({"etag": record.versions[0].etag} if record is not None and record.versions else {}),
        **({"kept": fetch_error} if fetch_error else {}),
    }


def _is_published(folder: Path, files: Mapping[str, Path]) -> bool:
    present = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    return present == set(files) and all((folder / name).samefile(file) for name, file in files.items())


def _sources(text: str, files: tuple[str, ...], beside: tuple[str, ...]) -> tuple[Source, ...]:
    """Return the sources of the engine's main file and of further files."""
    source = parse_source(text)
    if isinstance(source, LocalFile):
        raise SourceError(f"{source.path} is a local file: there is nothing to fetch")
    others = [file_beside(source, name) for name in beside]
    model = pick(source, files)
    for name, other in zip(beside, others, strict=True):
        if name in _published_names(model) and other != model:
            raise FileSetError(
                f"{name!r} would replace the model, which engines find by that name; rename the file at the source"
            )
    return (model, *others)


def _published_names(model: Source) -> Sequence[str]:
    """Return the names by which engines find a model's own files."""
    parts = len(model.parts) if isinstance(model, WebFile | HubFile | BucketFile) else 1
    return [_MODEL_NAME] if parts == 1 else numbered_part_names(parts)


def _token(file: Path | None) -> str | None:
    if file is not None:
        return read_token_file(file)
    return os.environ.get(_TOKEN_VARIABLE, "").strip() or None


def _summary(result: Mapping[str, Any]) -> str:
    if "removed" in result:
        return f"removed {', '.join(result['removed']) or 'nothing'}, {format_bytes(result['freedBytes'])} freed"
    return f"{format_bytes(result['sizeBytes'])}, {', '.join(result['files'])}"
