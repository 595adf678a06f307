"""The real implementation of `supervisor.values.ports`: this machine's processes, files and sockets."""

import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import attrs
import structlog
import trio

from llmkube.base.errors import UserError
from llmkube.base.http.client import HttpClient, open_http_client
from llmkube.base.private_files import remove_temporary_files, write_private
from llmkube.base.times import utcnow
from llmkube.base.trusted_paths import open_file
from llmkube.k8s.builtins import Secret
from llmkube.k8s.client import Client
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.runtimes.devices import with_own_memory
from llmkube.supervisor.credentials import SourceCredentials, client_keys_of
from llmkube.supervisor.engine.door import door_cookie
from llmkube.supervisor.engine.key_file import KEYS_FOLDER, key_path, read_keys, remove_private_files, with_client_keys
from llmkube.supervisor.engine.launcher import LocalEngines
from llmkube.supervisor.engine.orphans import STUCK_FOLDER, StuckEngines, match_processes, stuck_engine_of
from llmkube.supervisor.engine.proxy import PROXIES_FOLDER, config_path
from llmkube.supervisor.host.devices import MemoryWithDevices
from llmkube.supervisor.host.processes import OWNER_VARIABLE, end_all, find_marked
from llmkube.supervisor.host.this_machine import open_host_memory
from llmkube.supervisor.host_cordon import CordonFile
from llmkube.supervisor.memory.budget import host_budget
from llmkube.supervisor.memory.learned import LearnedFigures
from llmkube.supervisor.network import LocalNetwork, host_facts, machine_of
from llmkube.supervisor.values.admitted_networks import AdmittedNetworks, networks_path
from llmkube.supervisor.values.cordon import cordon_path
from llmkube.supervisor.values.journal import Entry, FileJournal
from llmkube.supervisor.values.ports import Ports
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.buckets import LOCATION_VARIABLES
from llmkube.weights.download.downloader import Downloader, open_downloader
from llmkube.weights.download.fetch import OPAQUE, ModelLibrary, fetch
from llmkube.weights.download.progress import Progress
from llmkube.weights.download.remote_header import read_remote_header
from llmkube.weights.errors import (
    DigestMismatchError,
    FetchError,
    NotGGUFError,
    ProjectorError,
    SourceUnsupportedError,
    WeightsError,
    WeightsNotFoundError,
)
from llmkube.weights.estimate.mlx import read_folder
from llmkube.weights.formats.gguf import read_header, vocabulary_difference
from llmkube.weights.formats.projector import read_projector
from llmkube.weights.formats.shape import FolderFacts, GGUFFacts, ModelHeader, Projector
from llmkube.weights.ollama_model import REMEDY, OllamaModel
from llmkube.weights.ollama_model import SCHEME as OLLAMA
from llmkube.weights.source import (
    NO_PROJECTOR,
    BucketFile,
    Builtin,
    EngineSource,
    HubFolder,
    LocalFile,
    LocalFolder,
    Remote,
    RemoteFile,
    WebFile,
    beside,
    engine_source,
    parse_source,
)
from llmkube.weights.split_names import choose_projector, is_projector
from llmkube.weights.store.blobs import Store, WeightsFile, open_store
from llmkube.weights.store.disk import RunSync, in_threads
from llmkube.weights.store.index import find_weights, name_of
from llmkube.weights.store.local_sources import LocalSources

log = structlog.get_logger()

MAX_FILE_THREADS = 4
"""Worker threads for reading, copying and hashing model files."""

MAX_STATE_THREADS = 2
"""Worker threads for small files in the state directory: a dead network disk may block all threads for model files."""

MAX_LOGGED: Final = 256
"""Maximum number of paths whose last log message is remembered, so that retries do not repeat it."""

PREVIEW_TTL_SECONDS: Final = 600.0
"""Time for which the header of a remote file is cached; its owner may replace the file."""


@attrs.define(eq=False)
class LocalWeights:
    """Model files in this machine's store."""

    store: Store
    limiter: trio.CapacityLimiter
    downloader: Downloader
    policy: AddressPolicy
    tokens: SourceCredentials
    read: RunSync
    read_header: Callable[..., Awaitable[GGUFFacts]]
    local: LocalSources = LocalSources()
    library: ModelLibrary | None = None
    _logged: dict[str, str] = attrs.field(factory=dict)  # path -> its last log message
    _verified: dict[str, str] = attrs.field(factory=dict)  # identity of a file -> its verified digest
    _refused: dict[tuple[str, str], DigestMismatchError] = attrs.field(factory=dict)  # by identity and expected digest
    _previews: dict[tuple[str, str, RemoteFile], tuple[float, GGUFFacts]] = attrs.field(factory=dict)  # with their time
    _headers: WeakValueDictionary[str, ModelHeader] = attrs.field(factory=WeakValueDictionary)  # of files in use

    async def fetch(self, model: Model, progress: Callable[[Progress], None]) -> tuple[WeightsFile, ModelHeader]:
        """Fetch the file if it is not here, and read its header; services of one file share the header."""
        source = _source_of(model)
        if isinstance(source, OllamaModel):
            return await self._from_library(source, model, progress)
        sha256 = model.spec.sha256.lower() if model.spec.sha256 else None
        fetch_source = self._fetcher(source, model, progress)
        try:
            if isinstance(source, LocalFile) and sha256 is not None:
                weights = await self._verified_in_place(fetch_source, sha256)
            else:
                weights = await fetch_source(sha256=sha256)
            try:
                return weights, await self._header_of(source, weights)
            except NotGGUFError as error:
                problem, before = error, weights.identity
            weights = await self._fetcher(source, model, progress, fresh=True)(sha256=sha256)  # it may be right now
            if weights.identity == before:
                raise problem
            return weights, await self._header_of(source, weights)
        except WeightsNotFoundError as error:
            self._log_once(model.spec.source, error.detail)
            raise

    async def _header_of(self, source: EngineSource, weights: WeightsFile) -> ModelHeader:
        facts = self._headers.get(weights.identity)
        if facts is None:
            facts = await self.read(partial(self._read_header, source, weights.path))
            facts = self._headers.setdefault(weights.identity, facts)
        return facts

    async def fetch_projector(
        self, model: Model, weights: WeightsFile, facts: GGUFFacts, progress: Callable[[Progress], None]
    ) -> Projector | None:
        """Fetch the projector of a fetched model: the named one, or else the one beside the file or in its repository.

        Returns:
            Its facts; None if there is none.
        """
        source, named = parse_source(model.spec.source), model.spec.mmproj
        if isinstance(source, LocalFile) and not named:
            return await self.read(partial(self._find_projector, Path(source.path), facts))
        if (named or weights.projector or NO_PROJECTOR) == NO_PROJECTOR:
            return None
        found = beside(source, named or weights.projector)
        try:
            file = await self._fetcher(found, model, progress)()
        except WeightsNotFoundError as error:
            self._log_once(named or "", error.detail)
            raise ProjectorError(str(error).removeprefix("spec.source: ")) from error
        return await self.read(partial(self._projector_in, file.path, file.identity, named or weights.projector))

    async def compare_vocabularies(self, model: WeightsFile, draft: WeightsFile) -> str:
        """Return why an engine would not use a draft model for a model; "" if it would."""
        files = [(each.path, self._opener(each.identity)) for each in (model, draft)]
        return await self.read(partial(vocabulary_difference, *files))

    def _opener(self, identity: str) -> Callable[[Path], int]:
        return self.local.open if identity.startswith("/") else open_file

    def _projector_in(self, path: Path, identity: str, name: str) -> Projector:
        return attrs.evolve(read_projector(path, self._opener(identity), name), path=str(path), identity=identity)

    def _find_projector(self, model: Path, facts: GGUFFacts) -> Projector | None:
        """Return the projector in the folder of a local file; files that may not be used or do not fit are ignored."""
        fitting, others = {}, []
        for path in model.parent.glob("*"):  # nothing, if the folder cannot be listed
            if not is_projector(path.name):
                others.append(path.name)
                continue
            with contextlib.suppress(WeightsError, FetchError):
                seen = self.local.admit(path)
                projector = self._projector_in(seen.path, seen.identity, path.name)
                if projector.width == facts.input_width:
                    fitting[path.name] = projector
        return fitting.get(choose_projector(model.name, [*fitting, *others]))

    def _fetcher(
        self, source: EngineSource, model: Model, progress: Callable[[Progress], None], *, fresh: bool = False
    ) -> Callable[..., Awaitable[WeightsFile]]:
        """Return `fetch` for a source with the Model's credentials; with `fresh` a changed file is fetched again."""
        return partial(
            fetch,
            source,
            self.store,
            progress=progress,
            limiter=self.limiter,
            download=partial(
                self.downloader.fetch,
                token=partial(self.tokens.find, model),
                access=partial(self.tokens.find_access, model),
                registry=partial(self.tokens.find_registry, model, source),
                policy=self.policy,
                fresh=fresh,
                namespace=model.key.namespace,
            ),
            local=self.local,
        )

    async def _from_library(
        self, source: OllamaModel, model: Model, progress: Callable[[Progress], None]
    ) -> tuple[WeightsFile, ModelHeader]:
        if self.library is None:
            raise SourceUnsupportedError(f"{source.redacted}: Ollama is not used here; {REMEDY}")
        if model.spec.source_secret_ref is not None:
            message = "not supported: Ollama pulls without LLMKube's credentials; remove the field"
            raise WeightsError(message, field="spec.sourceSecretRef")
        weights, facts = await self.library.fetch(source, progress)
        if model.spec.sha256 and model.spec.sha256.lower() != weights.sha256:
            cause = f"the file of {source.redacted} does not have the digest in spec.sha256"
            raise DigestMismatchError(f"{cause}; use another tag, or correct the digest", final=True)
        return weights, facts

    def _read_header(self, source: EngineSource, path: Path) -> ModelHeader:
        if isinstance(source, LocalFolder | HubFolder):
            return FolderFacts(None if getattr(source, "is_opaque", False) else read_folder(path))
        if isinstance(source, WebFile) and not source.is_gguf:
            return FolderFacts()
        return read_header(path, self.local.open if isinstance(source, LocalFile) else open_file)

    def _log_once(self, source: str, detail: str) -> None:
        """Log once why there are no weights at a path; only here, since authors of Models must not see this host."""
        if self._logged.get(source) != detail:
            if len(self._logged) >= MAX_LOGGED:
                self._logged.clear()
            self._logged[source] = detail
            log.warning("local file not served", path=source, why=detail)

    async def preview(self, model: Model) -> GGUFFacts | None:
        """Return the header of a remote file, cached for some time; None for another source or a file that is here."""
        source = _source_of(model)
        is_gguf = isinstance(source, RemoteFile) and getattr(source, "is_gguf", True)
        if not isinstance(source, RemoteFile) or not is_gguf or await self.has(model):
            return None
        now = trio.current_time()
        self._previews = {key: one for key, one in self._previews.items() if now - one[0] < PREVIEW_TTL_SECONDS}
        secret = model.spec.source_secret_ref
        preview_key = (model.key.namespace, secret.name if secret is not None else "", source)  # one per Secret
        if preview_key not in self._previews:
            facts = await self.read_header(source, policy=self.policy, **await self._secrets(source, model))
            self._previews[preview_key] = (now, facts)
        return self._previews[preview_key][1]

    async def _secrets(self, source: RemoteFile, model: Model) -> dict[str, Any]:
        if isinstance(source, BucketFile):
            return {"access": await self.tokens.find_access(model)}
        return {"token": await self.tokens.find(model)}

    async def has(self, model: Model) -> bool:
        """Whether the file is in the store, in place, or part of the program."""
        try:
            source = _source_of(model)
        except UserError:
            return False
        if isinstance(source, OllamaModel):
            return self.library is not None and await self.library.has(source)
        if isinstance(source, LocalFile):
            return await trio.to_thread.run_sync(self.local.admits, Path(source.path), abandon_on_cancel=True)
        if isinstance(source, LocalFolder):
            admits = partial(self.local.admits, Path(source.path), folder=True, opaque=source.is_opaque)
            return await trio.to_thread.run_sync(admits, abandon_on_cancel=True)
        if isinstance(source, Remote):
            name = await self.read(partial(name_of, self.store, source))
            found = await self.read(partial(find_weights, self.store, name))
            return isinstance(found, WeightsFile)
        return isinstance(source, Builtin)

    async def keeps(self, file: WeightsFile) -> bool:
        """Whether the file still exists, and may still be served."""
        if file.identity.startswith(f"{OLLAMA}://"):
            return self.library is not None and await self.library.keeps(file.identity)
        is_servable = self._admits if file.identity.startswith("/") else _exists  # a blob is known by its digest
        if file.identity.startswith(OPAQUE):
            is_servable = partial(self.local.admits, folder=True, opaque=True)
        return await trio.to_thread.run_sync(is_servable, file.path, abandon_on_cancel=True)

    def _admits(self, path: Path) -> bool:
        return self.local.admits(path, folder=path.is_dir())

    async def _verified_in_place(self, fetch_source: Callable[..., Awaitable[WeightsFile]], sha256: str) -> WeightsFile:
        """Return a local file with its digest, which is computed only once for all edits and retries."""
        weights = await fetch_source(sha256=None)
        if self._verified.get(weights.identity) != sha256:
            if (weights.identity, sha256) in self._refused:
                raise self._refused[weights.identity, sha256]
            try:
                weights = await fetch_source(sha256=sha256)
            except DigestMismatchError as error:
                self._refused[weights.identity, sha256] = error
                raise
            self._verified[weights.identity] = sha256
        return attrs.evolve(weights, sha256=sha256)


def _budget_bytes(settings: AgentSettings) -> int | None:
    """Return the memory budget for models; None if the size of this host's memory is not known."""
    total = host_facts().total_bytes
    return host_budget(total, settings.memory_fraction).limit_bytes if total else None


@asynccontextmanager
async def open_local_ports(
    settings: AgentSettings, client: Client, library: Callable[[HttpClient], ModelLibrary] | None = None
) -> AsyncIterator[Ports]:
    """Open this machine's ports, with the engines that an earlier agent left; end orphans first.

    The caller holds the lock of the state directory: engines of a running agent have the same mark, and would be ended.

    Args:
        settings: The agent's settings.
        client: Reads the Secrets that Models and services name.
        library: Returns the models of another program on this machine, such as Ollama; None if none is used.
    """
    limiter = trio.CapacityLimiter(MAX_FILE_THREADS)
    state_limiter = trio.CapacityLimiter(MAX_STATE_THREADS)
    rng = random.Random()  # noqa: S311 - jitter, not a secret
    journal = FileJournal(settings.state_dir / "journal", state_limiter)
    earlier = await trio.to_thread.run_sync(_clean_up, journal, settings, limiter=limiter)
    learned = LearnedFigures(settings.state_dir / "learned.json", state_limiter)
    await trio.to_thread.run_sync(learned.read, trio.current_time(), limiter=state_limiter)
    store = await trio.to_thread.run_sync(open_store, settings.store_dir, limiter=limiter)
    endpoint, policy = settings.hub_endpoint, AddressPolicy(allowed=settings.private_sources)
    egress, budget = settings.egress, _budget_bytes(settings)
    environ = os.environ if settings.s3_env_auth else {name: os.environ.get(name, "") for name in LOCATION_VARIABLES}
    tokens = SourceCredentials(partial(client.get, Secret), settings.hub_token_file, limiter, environ)
    async with (
        open_http_client() as http,
        open_host_memory(settings.memory_policy.thresholds) as memory,
        open_downloader(
            store, limiter=limiter, utcnow=utcnow, rng=rng, endpoint=endpoint, egress=egress, memory_bytes=budget
        ) as downloader,
    ):
        engines = LocalEngines(settings)
        yield Ports(
            engines=engines,
            weights=LocalWeights(
                store,
                limiter,
                downloader,
                policy,
                tokens,
                in_threads(limiter, abandon=True),
                partial(read_remote_header, utcnow=utcnow, endpoint=endpoint, egress=egress),
                LocalSources(settings.local_sources, settings.store_dir, settings.local_sources_file),
                library(http) if library is not None else None,
            ),
            journal=journal,
            http=http,
            utcnow=utcnow,
            rng=rng,
            earlier=earlier,
            downloads=downloader.active,
            facts=host_facts,
            machine=await trio.to_thread.run_sync(machine_of, settings.state_dir, limiter=limiter),
            address=LocalNetwork(settings.api_server, settings.host_ip).find_address if settings.api_server else None,
            memory=MemoryWithDevices(memory, settings.devices) if with_own_memory(settings.devices) else memory,
            learned=learned,
            client_keys=partial(client_keys_of, partial(client.get, Secret)),
            admit=partial(_write_networks, networks_path(settings.state_dir)),
            cordon=CordonFile(cordon_path(settings.state_dir)),
            door=engines.door() if settings.publishes else None,
        )


def _clean_up(journal: FileJournal, settings: AgentSettings) -> dict[Key, Entry]:
    """End orphans, and return the entries that an earlier agent left; blocks for up to two grace periods."""
    stuck_engines = StuckEngines(settings.state_dir / STUCK_FOLDER)
    for folder in (settings.state_dir, stuck_engines.root, *journal.root.glob("*/")):
        remove_temporary_files(folder)
    entries = journal.read_all()
    earlier, orphans = match_processes(entries, settings, find_marked(OWNER_VARIABLE, str(settings.state_dir)))
    for key, entry in earlier.items():
        if (record := entries[key].engine) is not None:
            earlier[key] = with_client_keys(entry, read_keys(key_path(settings.state_dir, record.cookie)))
    journal.clear(entries.keys() - earlier.keys())
    cookies = frozenset(entry.engine.cookie for entry in earlier.values() if entry.engine)
    proxies = (*cookies, door_cookie(settings.state_dir))
    remove_private_files(settings.state_dir / KEYS_FOLDER, cookies)
    remove_private_files(
        settings.state_dir / PROXIES_FOLDER, {config_path(settings.state_dir, each).name for each in proxies}
    )
    for process in end_all(orphans, grace_seconds=settings.longest_grace_seconds):
        if (stuck := stuck_engine_of(process)) is not None:
            stuck_engines.record(stuck)
    return earlier


async def _write_networks(path: Path, admitted: AdmittedNetworks) -> None:
    await trio.to_thread.run_sync(partial(write_private, path, admitted.dump(), durable=False))


def _source_of(model: Model) -> EngineSource:
    return engine_source(parse_source(model.spec.source), model.spec.files, model.spec.format)


def _exists(path: Path) -> bool:
    try:
        return path.is_file() or path.is_dir()
    except OSError:
        return False
