"""The journal: desired state, plan and process of each service on disk, from which a new agent continues.

There is one small file per service, `journal/<namespace>/<name>.json`, mode 0600. It is written before a process is
started (the intent, with the cookie in the process's environment) and again when its pid is known, so no engine ever
runs without an entry. It contains the objects, too: an agent that starts while the API server is unreachable serves the
last known services.

The files are not synced to disk: a power cut that loses an entry has killed the engine as well. A file that cannot be
read is ignored, and its engine is then an orphan.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

from llmkube.base.errors import RESOURCE_ERRNOS, ExternalError
from llmkube.base.full_disk import full_disk, is_disk_full
from llmkube.base.lazy_log import LazyLog
from llmkube.base.private_files import file_stem, make_private_folder, write_private
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.crd.sharing import ModelPool
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.plan import LaunchPlan, dump_argv, load_argv
from llmkube.supervisor.values.desired import Desired, Launch
from llmkube.weights.estimate.demand import Component, Demand, Estimate, Location
from llmkube.weights.store.blobs import WeightsFile

log = LazyLog()

FORMAT = 1
"""Format version; it grows when an older agent could misread a file. Files of another version are ignored."""


class JournalError(ExternalError):
    """The journal cannot be written, so no process may be started; or this host cannot open it."""

    reason = Reason.JOURNAL_NOT_WRITTEN


@attrs.frozen
class EngineRecord:
    """One engine process, as the next agent identifies it.

    Attributes:
        cookie: Unique value in its environment.
        host: The address that it listens on.
        port: Its port.
        public_host: The address that its proxy listens on; "" if clients connect to the engine itself.
        public_port: The proxy's port.
        build: Build of its program; "" if an earlier release started it.
        log_offset: Offset of its own output in the service's log file, in bytes.
        pid: Its process id; 0 while only the intent is known.
        started: Start of the process, which tells it from another one with the same pid (`processes.start_of`).
        next_log: Whether its log may still have the name of a successor's log.
        api_key: The key that it requires; "" if an agent without keys started it.
    """

    cookie: str
    host: str
    port: int
    log_offset: int = 0
    pid: int = 0
    started: str = ""
    next_log: bool = False
    api_key: str = attrs.field(default="", repr=False)
    public_host: str = ""
    public_port: int = 0
    build: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """The address and port that clients use."""
        return (self.public_host, self.public_port) if self.public_host else (self.host, self.port)


@attrs.frozen
class Entry:
    """One service on disk.

    Attributes:
        desired: The newest desired state.
        launch: The launch that runs.
        engine: Its process.
        fallback: The launch that served last, while a newer one cannot start.
        idle: Whether nothing runs because no request needs it.
    """

    desired: Desired
    launch: Launch
    engine: EngineRecord | None = None
    fallback: Launch | None = None
    idle: bool = False

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.desired.key


def dump(entry: Entry) -> dict[str, Any]:
    """Return an entry as JSON."""
    return {
        "format": FORMAT,
        "service": encode(entry.desired.service),
        "model": encode(entry.desired.model),
        "draft": encode(entry.desired.draft) if entry.desired.draft else None,
        "adapters": [encode(each) if each else None for each in entry.desired.adapters],
        "pool": encode(entry.desired.pool) if entry.desired.pool else None,
        **_dump_launch(entry.launch),
        "engine": attrs.asdict(entry.engine) if entry.engine else None,
        "kept": _dump_launch(entry.fallback) if entry.fallback else None,
        "idle": entry.idle,
    }


def _dump_launch(launch: Launch) -> dict[str, Any]:
    plan, weights = launch.plan, launch.weights
    return {
        "plan": attrs.asdict(plan) | {"argv": dump_argv(plan.argv)},
        "weights": attrs.asdict(weights) | {"path": str(weights.path)},
        "estimate": attrs.asdict(launch.estimate) if launch.estimate else None,
    }


def load(data: Mapping[str, Any]) -> Entry:
    """Read what `dump` wrote.

    Raises:
        ValueError: The data has another format, or is incomplete.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ValueError(f"not an entry of format {FORMAT}")
    try:
        engine = EngineRecord(**data["engine"]) if data["engine"] else None
        draft = decode(Model, data["draft"]) if data.get("draft") else None
        adapters = tuple(decode(Model, each) if each else None for each in data.get("adapters", ()))
        pool = decode(ModelPool, data["pool"]) if data.get("pool") else None
        service, model = decode(InferenceService, data["service"]), decode(Model, data["model"])
        desired = Desired(service, model, draft, adapters, pool)
        fallback = _launch(data["kept"]) if data.get("kept") else None
        return Entry(desired, _launch(data), engine, fallback, bool(data.get("idle")))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"not an entry of this journal: {error!r}") from error


def _launch(data: Mapping[str, Any]) -> Launch:
    plan = dict(data["plan"])
    plan["argv"] = load_argv(plan["argv"])
    plan["env"] = tuple((name, value) for name, value in plan["env"])
    plan["not_honoured"] = tuple(plan["not_honoured"])
    plan["adapters"] = _frozen(plan.get("adapters", []))
    plan["demand"] = _demand(plan.get("demand"))
    weights = dict(data["weights"])
    weights["path"] = Path(weights["path"])
    return Launch(LaunchPlan(**plan), WeightsFile(**weights), _estimate(data.get("estimate")))


def _demand(data: Mapping[str, Any] | None) -> Demand | None:
    """Return the demand, or None if another version of this program wrote it; the engine's memory is then measured."""
    try:
        return None if data is None else Demand(**{name: _frozen(value) for name, value in data.items()})
    except TypeError:
        return None


def _estimate(data: Mapping[str, Any] | None) -> Estimate | None:
    try:
        if data is None:
            return None
        parts = [Component(one["name"], Location(one["place"]), int(one["size_bytes"])) for one in data["components"]]
        return Estimate(tuple(parts), tuple(data["notes"]), bool(data["certain"]))
    except (KeyError, TypeError, ValueError):
        return None


def _frozen(value: Any) -> Any:
    """Return a JSON value with tuples in place of lists."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def entry_path(root: Path, key: Key) -> Path:
    """Return the path of a service's entry; both names are DNS names, so it cannot leave the folder."""
    return root / key.namespace / f"{file_stem(key.name)}.json"


def read_entry(root: Path, key: Key) -> Entry | None:
    """Return one entry of the journal in a folder, or None if it is missing or cannot be read; blocks."""
    try:
        return load(json.loads(entry_path(root, key).read_text("utf-8")))
    except (OSError, ValueError):
        return None


@attrs.define(eq=False)
class FileJournal:
    """The journal of one state directory."""

    root: Path
    limiter: trio.CapacityLimiter

    async def write(self, entry: Entry) -> None:
        """Replace a service's entry atomically.

        Raises:
            JournalError: The file cannot be written.
        """
        text = json.dumps(dump(entry), separators=(",", ":"))
        await trio.to_thread.run_sync(self._replace, entry_path(self.root, entry.key), text, limiter=self.limiter)

    async def remove(self, key: Key) -> None:
        """Remove a service's entry."""
        await trio.to_thread.run_sync(self._remove, entry_path(self.root, key), limiter=self.limiter)

    def read_all(self) -> dict[Key, Entry]:
        """Return every entry that can be read; blocks.

        Raises:
            JournalError: No file descriptor is left, so running engines would be mistaken for orphans.
        """
        return dict(self._entries())

    def clear(self, keys: Iterable[Key]) -> None:
        """Remove the entries of several services; blocks."""
        for key in keys:
            self._remove(entry_path(self.root, key))

    def _entries(self) -> Iterator[tuple[Key, Entry]]:
        for path in sorted(self.root.glob("*/*.json")):
            try:
                entry = load(json.loads(path.read_text("utf-8")))
            except (OSError, ValueError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors, too
                if isinstance(error, OSError) and error.errno in RESOURCE_ERRNOS:
                    raise JournalError(f"cannot read {path}: {error.strerror}") from error
                log.warning("journal entry not used", path=str(path), error=str(error))
            else:
                yield entry.key, entry

    def _replace(self, path: Path, text: str) -> None:
        try:
            make_private_folder(path.parent)
            write_private(path, text, durable=False)
        except OSError as error:
            why = full_disk(self.root) if is_disk_full(error) else error.strerror
            raise JournalError(f"engine not started: {path} cannot be written: {why}") from error

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("journal entry not removed", path=str(path), error=str(error))
