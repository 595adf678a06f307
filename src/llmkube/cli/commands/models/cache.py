"""`llmkube cache`: the model files on this machine, with or without an agent. Only --force removes files in use."""

import datetime
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import click
import trio
from rich.console import Console

from llmkube.base.errors import LLMKubeError, UserError
from llmkube.base.private_files import file_stem
from llmkube.base.times import utcnow
from llmkube.base.units import format_bytes, format_duration
from llmkube.cli.commands.models.inspect import as_data as facts_as_data
from llmkube.cli.commands.models.inspect import as_rows
from llmkube.cli.options import output_option
from llmkube.cli.target_cluster import ANSWER_SECONDS, Origin, find_config
from llmkube.cli.view import formats, output
from llmkube.cli.view.progress_line import Display, open_console, open_display
from llmkube.k8s.auth.config import ClusterConfig
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import open_client
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.model import Model
from llmkube.programs.config import CONTEXT, HF_TOKEN_FILE, HUB_ENDPOINT, KUBECONFIG, MODEL_STORE, EgressConfig, load
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import HELP, command, settings_options
from llmkube.programs.program import open_service_nursery
from llmkube.programs.state_dir import hold_state_dir
from llmkube.programs.state_location import SERVER_LOCK, STATE_DIR, lock_holder
from llmkube.supervisor.credentials import read_token_file
from llmkube.supervisor.engine import prompt_files
from llmkube.supervisor.engine.prompt_files import SavedPrompt
from llmkube.supervisor.memory.budget import host_budget
from llmkube.supervisor.network import host_facts
from llmkube.supervisor.values.journal import FileJournal
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.buckets import BucketAccess
from llmkube.weights.download.downloader import open_downloader
from llmkube.weights.download.fetch import fetch
from llmkube.weights.download.progress import Progress
from llmkube.weights.errors import SourceError
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.ollama_model import OllamaModel
from llmkube.weights.source import Builtin, LocalFile, Remote, Source, engine_source, parse_source, pick
from llmkube.weights.store.blobs import Store, WeightsFile, open_store
from llmkube.weights.store.cache import CachedModel, Pruned, find_cached, incomplete_bytes, list_cached, prune
from llmkube.weights.store.index import key_of, name_of


@attrs.frozen
class CacheConfig:
    """The settings of `llmkube cache`, from the agent's table: it works on the agent's store."""

    model_store: Path | None = MODEL_STORE
    state_dir: Path = STATE_DIR  # load() chooses the default


@attrs.frozen
class PruneConfig:
    """The settings of `llmkube cache prune`; the Models in the agent's cluster are in use."""

    kubeconfig: Path | None = KUBECONFIG
    context: str | None = CONTEXT
    model_store: Path | None = MODEL_STORE
    state_dir: Path = STATE_DIR  # load() chooses the default


@attrs.frozen
class PreloadConfig(EgressConfig):
    """The settings of `llmkube cache preload`."""

    model_store: Path | None = MODEL_STORE
    hf_token_file: Path | None = HF_TOKEN_FILE
    hub_endpoint: str = HUB_ENDPOINT
    state_dir: Path = STATE_DIR  # load() chooses the default


COLUMNS: Final = ("KEY", "SIZE", "FETCHED", "SOURCE")
PROMPT_COLUMNS: Final = ("SERVICE", "TOKENS", "SIZE", "SAVED")
_KEY_LENGTH: Final = 12
_LINE_SECONDS: Final = 10.0  # between lines of progress that is not shown on a terminal


@click.group("cache", context_settings=HELP)
def cache() -> None:
    """List, inspect, prune and preload model files on this machine, and list the prompts saved on it."""


@command("list", cache)
@settings_options(CacheConfig)
@output_option("json", "yaml")
def list_models(*, form: str, **flags: Any) -> None:
    """List the models in the store."""
    store = _store(flags)
    models = list_cached(store)
    if form:
        click.echo(formats.dump([as_data(each) for each in models], form))
        return
    if not models:
        click.echo(f"No models in {store.root}.")
    else:
        now = utcnow()
        click.echo(output.table(COLUMNS, (_row(each, now) for each in models)))
    if unfinished := incomplete_bytes(store):
        click.echo(f"\nUnfinished downloads take {format_bytes(unfinished)}.")


@command("inspect", cache)
@click.argument("model", metavar="SOURCE|KEY")
@settings_options(CacheConfig)
@output_option("json", "yaml")
def inspect_cached(*, model: str, form: str, **flags: Any) -> None:
    """Show a model in the store, with the metadata of its file.

    SOURCE is the source in a Model's spec; KEY is the beginning of the key in `llmkube cache list`.
    """
    found = _require_cached(_store(flags), model)
    facts = None if found.path is None else read_header(found.path)
    if form:
        data = as_data(found) | ({} if facts is None else {"gguf": facts_as_data(facts)})
        click.echo(formats.dump(data, form))
        return
    rows = [
        ("source", found.source),
        ("key", found.key),
        ("path", str(found.path or "a part is missing or was changed; it will be verified or fetched again")),
        *(("sha256", digest) for digest in found.digests),
        *((("fetched", found.fetched_at),) if found.fetched_at else ()),
        *(() if facts is None else as_rows(facts)),
    ]
    width = max(len(label) for label, _ in rows)
    click.echo("\n".join(f"{label:<{width}}  {output.printable(text)}" for label, text in rows))


@command("prune", cache)
@click.argument("models", metavar="[SOURCE|KEY]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--force", is_flag=True, help="Also remove models that are in use; query no API server.")
@settings_options(PruneConfig)
@output_option("json", "yaml")
def prune_models(*, models: tuple[str, ...], dry_run: bool, force: bool, form: str, **flags: Any) -> None:
    """Remove unused models and abandoned downloads.

    A model is in use if an engine of the state directory runs with it, or if a Model names it in `llmkube up` on this
    machine, running or stopped, or in the cluster of the agent's settings (by default kubectl's). If that cluster's
    API server does not answer, nothing is removed. Agents with other state directories are not considered.
    """
    config = load("agent", PruneConfig, flags)
    store = _open(config)
    only = {_require_cached(store, text).key: text for text in models}
    used: Mapping[str, str] = {}
    if not force:
        api_servers = list(_api_servers(config.kubeconfig, config.context, config.state_dir))
        used = trio.run(_used_by_models, store, api_servers) | _used_by_engines(store, config.state_dir)
        used |= {_identity_of(store, each): f"Model {each.key}" for each in _stored_models(config.state_dir)}
    users = {key_of(identity): user for identity, user in used.items()}
    if in_use := [f"{text} is in use by {users[key]}" for key, text in only.items() if key in users]:
        raise CommandError(f"nothing was removed: {'; '.join(in_use)}; delete the object first, or use --force")
    done = prune(store, used.keys(), only=set(only) if models else None, dry_run=dry_run)
    if form:
        data = {"models": list(done.models), "unfinished": done.incomplete, "freedBytes": done.freed_bytes}
        click.echo(formats.dump(data | {"dryRun": dry_run}, form))
    else:
        click.echo("\n".join(_prune_report(done, dry_run=dry_run)))


@command("prompts", cache)
@click.argument("service", metavar="[NAMESPACE/]NAME", required=False)
@click.option("--clear", is_flag=True, help="Remove them.")
@settings_options(CacheConfig)
@output_option("json", "yaml")
def list_prompts(*, service: str | None, clear: bool, form: str, **flags: Any) -> None:
    """List or remove what models have computed of conversations, of one service or of all.

    The files contain the conversations. `--prompt-cache-gib` of `llmkube up` and `llmkube agent` limits their size.
    """
    root = load("agent", CacheConfig, flags).state_dir / prompt_files.FOLDER
    namespace, _, name = (service or "").rpartition("/")
    only = service and root / (namespace or "default") / file_stem(name)
    folders = [folder for folder in sorted(root.glob("*/*")) if only in {None, folder}]
    found = [
        (f"{each.parent.name}/{each.name}", prompt) for each in folders for _, prompt in prompt_files.read_all(each)
    ]
    for folder in folders if clear else ():
        prompt_files.remove_folder(folder)
    if form:
        click.echo(formats.dump([prompt_as_data(*each) for each in found], form))
    elif not found:
        click.echo(f"No saved prompts in {only or root}.")
    elif clear:
        freed = format_bytes(sum(each.size_bytes for _, each in found))
        click.echo(f"saved prompts removed: {len(found)}; {freed} freed")
    else:
        now = utcnow()
        rows = ((name, str(p.tokens), format_bytes(p.size_bytes), output.age(p.saved_at, now)) for name, p in found)
        click.echo(output.table(PROMPT_COLUMNS, rows))


def prompt_as_data(service: str, prompt: SavedPrompt) -> dict[str, Any]:
    """Return a saved prompt as JSON data."""
    return {
        "service": service,
        "slot": prompt.slot,
        "tokens": prompt.tokens,
        "sizeBytes": prompt.size_bytes,
        "savedAt": prompt.saved_at,
    }


@command("preload", cache)
@click.argument("source", type=click.Path())
@click.option("--sha256", metavar="HEX", help="SHA-256 digest that the file must have.")
@click.option("--file", "files", metavar="NAME", multiple=True, help="File of a repository, as in spec.files.")
@settings_options(PreloadConfig)
@output_option("json", "yaml")
def preload(*, source: str, sha256: str | None, files: tuple[str, ...], form: str, **flags: Any) -> None:
    """Fetch a model into the store, so that a service starts without a download."""
    config = load("agent", PreloadConfig, flags)
    wanted = _fetchable(source, files)
    if sha256 is not None and (len(sha256) != 64 or set(sha256.lower()) - set("0123456789abcdef")):
        raise CommandError(f'--sha256: "{sha256}" is not a digest of 64 hex digits', ExitCode.USAGE)
    store = _open(config)
    found = trio.run(_preload, config, store, wanted, sha256, open_console(stderr=True))
    read_header(found.path)  # report an invalid file now, not when a service starts
    (cached,) = (each for each in list_cached(store) if each.key == key_of(name_of(store, wanted)))
    if form:
        click.echo(formats.dump(as_data(cached), form))
    else:
        chosen = f" ({found.choice})" if found.choice else ""
        size = format_bytes(cached.size_bytes)
        click.echo(output.wrapped(f"{cached.source} is in the store: {size} at {cached.path}{chosen}"))


def as_data(cached: CachedModel) -> dict[str, Any]:
    """Return a model in the store as JSON data."""
    return {
        "key": cached.key,
        "source": cached.source,
        "sizeBytes": cached.size_bytes,
        "sha256": list(cached.digests),
        "fetchedAt": cached.fetched_at or None,
        "path": None if cached.path is None else str(cached.path),
    }


def _row(cached: CachedModel, now: datetime.datetime) -> tuple[str, ...]:
    size = format_bytes(cached.size_bytes) + (f" in {len(cached.digests)} parts" if len(cached.digests) > 1 else "")
    return cached.key[:_KEY_LENGTH], size, output.age(cached.fetched_at, now), cached.source


def _store(flags: Mapping[str, Any]) -> Store:
    return _open(load("agent", CacheConfig, flags))


def _open(config: CacheConfig | PreloadConfig | PruneConfig) -> Store:
    return open_store(config.model_store or config.state_dir / "store")


def _require_cached(store: Store, text: str) -> CachedModel:
    found = find_cached(store, text)
    if not found:
        raise CommandError(f"{text} is not in {store.root}; see `llmkube cache list`", ExitCode.NOT_FOUND)
    if len(found) > 1:
        raise CommandError(f"{text} matches {len(found)} models; specify more digits of the key", ExitCode.USAGE)
    return found[0]


def _api_servers(kubeconfig: Path | None, context: str | None, state_dir: Path) -> Iterator[tuple[str, ClusterConfig]]:
    """Yield the name and configuration of each API server whose Models may use this store."""
    own = state_dir / "kubeconfig"
    if own.is_file() and lock_holder(state_dir, SERVER_LOCK) is not None:
        yield str(own), load_config(own, None)
    try:
        config, origin = find_config(kubeconfig, context, state_dir)
    except UserError as exc:
        if kubeconfig is not None or context is not None or not own.is_file():
            raise CommandError(f"{exc}; or use --force to remove models that may be in use") from exc
        return
    if origin is not Origin.UP:
        yield config.server, config


def _stored_models(state_dir: Path) -> Sequence[Model]:
    """Return the Models of an `llmkube up` that is stopped, from its database; it cannot start meanwhile."""
    from llmkube.apiserver.storage.write_ahead_log import DATABASE, open_write_ahead_log  # noqa: PLC0415 - only here

    database = state_dir / DATABASE
    if not database.is_file() or lock_holder(state_dir, SERVER_LOCK) is not None:
        return ()
    with hold_state_dir(state_dir, SERVER_LOCK), open_write_ahead_log(database) as stored:
        return [decode(Model, each) for _, each in stored.load().list(Model.RESOURCE.full_name)]


async def _used_by_models(store: Store, clusters: Iterable[tuple[str, ClusterConfig]]) -> dict[str, str]:
    """Return the identities of the sources that Models use, each with the name of a Model."""
    used: dict[str, str] = {}
    for name, config in clusters:
        problem = f"nothing was removed: {name} does not report which models are in use"
        try:
            with trio.fail_after(ANSWER_SECONDS):
                async with open_client(config) as client:
                    models = (await client.list(Model)).items
        except trio.TooSlowError as exc:
            raise CommandError(f"{problem}: no answer in {ANSWER_SECONDS:g} s; try again", ExitCode.TIMED_OUT) from exc
        except LLMKubeError as exc:
            raise CommandError(f"{problem} ({exc}); fix that, or use --force to remove models in use") from exc
        for model in models:
            if identity := _identity_of(store, model):
                used.setdefault(identity, f"Model {model.key}")
    return used


def _used_by_engines(store: Store, state_dir: Path) -> dict[str, str]:
    """Return the identities of the sources that this state directory's engines use, each with the name of a service."""
    entries = FileJournal(state_dir / "journal", trio.CapacityLimiter(1)).read_all().values()
    return {
        _identity_of(store, entry.desired.model): f"InferenceService {entry.key} on this machine" for entry in entries
    }


def _identity_of(store: Store, model: Model) -> str:
    try:
        source = engine_source(parse_source(model.spec.source), model.spec.files, model.spec.format)
    except UserError:
        return ""  # an invalid source was never fetched
    return name_of(store, source) if isinstance(source, Remote | Builtin) else ""


def _prune_report(done: Pruned, *, dry_run: bool) -> Iterator[str]:
    would = "would be " if dry_run else ""
    for source in done.models:
        yield f"{output.printable(source)} {would}removed"
    if done.incomplete:
        plural = "" if done.incomplete == 1 else "s"
        yield f"{done.incomplete} unfinished download{plural} {would}removed"
    yield f"{format_bytes(done.freed_bytes)} {would}freed"


def _fetchable(text: str, files: tuple[str, ...]) -> Any:
    source: Source = pick(parse_source(text), files)
    if isinstance(source, LocalFile):
        raise SourceError(f"{source.path} is already on this machine: services read it there without a download")
    if isinstance(source, OllamaModel):
        message = f"{source.redacted} is stored by Ollama, not in this store; `ollama pull {source.name}` fetches it"
        raise SourceError(message)
    if not hasattr(source, "identity"):
        raise SourceError(f"{text} cannot be fetched from here; name an https://, hf:// or s3:// source")
    return source


async def _preload(
    config: PreloadConfig, store: Store, source: Any, sha256: str | None, console: Console
) -> WeightsFile:
    limiter = trio.CapacityLimiter(4)
    started = trio.current_time()

    async def token() -> str | None:
        await trio.lowlevel.checkpoint()
        return None if config.hf_token_file is None else read_token_file(config.hf_token_file)

    async def access() -> BucketAccess:
        await trio.lowlevel.checkpoint()
        return BucketAccess.read(os.environ)

    async with open_downloader(
        store,
        limiter=limiter,
        utcnow=utcnow,
        rng=random.Random(),  # noqa: S311 - jitter, not a secret
        endpoint=config.hub_endpoint,
        egress=config.egress(),
        memory_bytes=host_budget(total).limit_bytes if (total := host_facts().total_bytes) else None,
    ) as downloader:
        with open_display(console) as display:
            async with open_service_nursery() as nursery:
                nursery.start_soon(display.run)
                found = await fetch(
                    source,
                    store,
                    sha256=sha256,
                    progress=_ProgressPrinter(display, 0.0 if console.is_terminal else _LINE_SECONDS),
                    limiter=limiter,
                    download=partial(
                        downloader.fetch, token=token, access=access, policy=AddressPolicy(from_operator=True)
                    ),
                )
        console.print(f"done in {format_duration(trio.current_time() - started)}", highlight=False)
    return found


@attrs.define(eq=False)
class _ProgressPrinter:
    """Shows progress: all of it on a terminal; elsewhere at intervals, and whenever the stage or its note changes."""

    display: Display
    every_seconds: float
    _last: tuple[str, str, int] = ("", "", -1)

    def __call__(self, progress: Progress) -> None:
        tick = int(trio.current_time() // self.every_seconds) if self.every_seconds else 0
        now = (progress.stage, progress.note, tick)
        if not self.every_seconds or now != self._last:
            self._last = now
            self.display.show_step("fetch", str(progress))
