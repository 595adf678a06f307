"""Save what an engine has computed while it is idle and before it stops, and restore it after the next load.

```
 idle, drained ─▶ POST /slots/N?action=save ─▶ record: digest of the launch, size, SHA-256
 loaded ────────▶ same digest, intact file ─▶ POST /slots/N?action=restore ─▶ one request; its `cache_n` is recorded
```

The request sends the tokens of the saved slot. If the engine computes them again, the restore has failed: the file is
removed, and the engine is replaced, since llama.cpp may answer wrongly after a failed restore (issue 27052).
"""

import contextlib
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Never, TypeVar

import attrs
import structlog
import trio
from structlog.typing import FilteringBoundLogger

from llmkube.base.errors import ExternalError
from llmkube.base.full_disk import free_bytes
from llmkube.base.http.errors import HttpError
from llmkube.base.http.message import Response
from llmkube.base.private_files import make_private_folder
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME
from llmkube.k8s.resource import Key
from llmkube.runtimes.arguments import flag_values, flags_in
from llmkube.runtimes.plan import EngineInfo, LaunchPlan
from llmkube.supervisor.engine import health, prompt_files
from llmkube.supervisor.engine.prompt_files import SavedPrompt
from llmkube.supervisor.service.loading import RunningEngine
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.settings import SAVE_SECONDS, AgentSettings

log: FilteringBoundLogger = structlog.get_logger(__name__)

T = TypeVar("T")

RESTORE_SECONDS: Final = 30.0
"""Time limit of all restores of one engine, with their verification."""

IDLE_SECONDS: Final = 30.0
"""Time without requests after which the prompts of an engine are saved, in case it is killed."""

WRITE_BYTES_PER_SECOND: Final = float(1 << 20)
"""Average of what these saves write, of all engines of a host."""

WRITE_BURST_BYTES: Final = float(1 << 30)
"""Bytes that they may write at once, before that limit applies."""

NOT_SUPPORTED: Final = 501
"""Response of an engine without a folder for slots, even to a name that it would refuse."""

MIN_TOKENS: Final = 32
"""Shorter prompts are computed again."""

RESERVE_BYTES: Final = 1 << 30
"""Space that a save leaves free on the disk."""

SAVE_FLAG: Final = "--slot-save-path"
_SLOT_PARTS: Final = frozenset({"KV cache", "recurrent state"})

# An adapter's scale may be changed while the engine runs, and a draft model's cache is not part of a slot.
_UNSAVED: Final = {
    "--no-slots": "its clients have keys",
    "--lora": "it has adapters",
    "--lora-scaled": "it has adapters",
    "--control-vector": "it has adapters",
    "--control-vector-scaled": "it has adapters",
    "-md": "it has a draft model",
    "--model-draft": "it has a draft model",
    "--spec-type": "it decodes speculatively",
    "--no-cache-prompt": "it reuses no prompts",
}
_NO_EFFECT: Final = """
    --alias --api-key-file --cors-origins --metrics --no-ui --no-webui --verbosity --cache-ram -cram
    --threads -t --threads-batch -tb
    --temp --top-k --top-p --min-p --repeat-penalty --seed -s --n-predict --predict -n
"""
"""Flags that change neither the tokens of a prompt nor what is computed of them."""


class RestoreError(ExternalError):
    """A saved prompt could not be restored, so the state of the engine is not known."""


def unsaved_reason(plan: LaunchPlan, api_key: str) -> str:
    """Return why the prompts of engines of this plan, which require this key, are not saved; "" if they are."""
    if plan.runtime != DEFAULT_RUNTIME:
        return "only llama-server can save them"
    if plan.mode != "chat":
        return "it generates no text"
    if not api_key:
        return "every client could restore and erase them, since the engine requires no key"
    return next((why for flag, why in _UNSAVED.items() if flag in flags_in(plan.argv)), "")


def save_due_at(used_at: float, saved_at: float, paid_at: float) -> float:
    """Return when the prompts of an engine that serves are saved; infinite if it has not worked since the last time.

    Args:
        used_at: When it last worked.
        saved_at: When it had last worked at the last save.
        paid_at: When the average of what has been written is low enough again.
    """
    earliest = paid_at - WRITE_BURST_BYTES / WRITE_BYTES_PER_SECOND
    return max(used_at + IDLE_SECONDS, earliest) if used_at > saved_at else math.inf


def digest_of(launch: Launch, build: str) -> str:
    """Return the digest of everything that a saved prompt depends on.

    Weights, build, environment, and all flags but those without effect: context, cache types, template, rope.
    """
    values = {flag: value for flag, value in flag_values(launch.plan.argv).items() if flag not in _NO_EFFECT.split()}
    facts = [build, launch.plan.weights_identity, sorted(launch.plan.env), sorted(values.items())]
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()


@attrs.define(eq=False)
class PromptStore:
    """The saved prompts of this host.

    Attributes:
        root: The folder with a folder for each service.
        limit_bytes: Their total size; 0 saves none.
        deleted: Services that have been deleted, and whose engines stop.
        paid_at: When saves of engines that serve have written no more than their average.
        limiter: Limits the threads that read and write files.
    """

    root: Path
    limit_bytes: int
    deleted: set[Key] = attrs.field(factory=set)
    paid_at: float = -math.inf
    limiter: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1))

    @classmethod
    def of(cls, settings: AgentSettings) -> "PromptStore":
        """Return the store that the settings of a host describe."""
        return cls(settings.state_dir / prompt_files.FOLDER, settings.prompt_cache_bytes)

    def folder(self, key: Key) -> Path:
        """Return the folder of a service."""
        return prompt_files.folder_of(self.root, key)

    async def flags_for(self, key: Key, plan: LaunchPlan, engine: EngineInfo, api_key: str) -> tuple[str, ...]:
        """Return the flags with which an engine can save prompts, and create its folder; none if it must not.

        They are not part of the plan: a setting of the host restarts no engine.
        """
        if not self.limit_bytes or unsaved_reason(plan, api_key) or SAVE_FLAG not in engine.flags:
            return ()
        try:
            await self.in_thread(make_private_folder, self.folder(key))
        except OSError:  # the disk is full, and the engine would not start without the folder
            return ()
        return SAVE_FLAG, f"{self.folder(key)}/"  # the engine appends file names to it

    async def remove(self, key: Key) -> None:
        """Remove the prompts of a deleted service."""
        await self.in_thread(prompt_files.remove_folder, self.folder(key))
        self.deleted.discard(key)

    async def keep_services(self, keys: Collection[Key]) -> None:
        """Remove the prompts of all services but these, and those beyond the limit."""
        await self.in_thread(prompt_files.keep_services, self.root, keys if self.limit_bytes else ())
        try:
            await self.in_thread(prompt_files.trim, self.root, self.limit_bytes)
        except OSError as error:
            log.warning("saved prompts not removed", path=str(self.root), error=str(error))

    async def in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that blocks; a cancelled call ends in the background."""
        return await trio.to_thread.run_sync(partial(function, *args), limiter=self.limiter, abandon_on_cancel=True)


@attrs.define(eq=False)
class EnginePrompts:
    """The prompts of one engine.

    Attributes:
        store: Where they are saved.
        running: The engine.
        key: Its service.
        owner: The uid of the service.
    """

    store: PromptStore
    running: RunningEngine
    key: Key
    owner: str
    _saved: dict[int, int] = attrs.field(factory=dict)  # the last request in the file of a slot, by its number
    _lock: trio.Lock = attrs.field(factory=trio.Lock)  # of the files that the engine writes

    @property
    def log(self) -> FilteringBoundLogger:
        """Logger that is bound to the service."""
        return log.bind(name=self.key.name, namespace=self.key.namespace)

    @property
    def digest(self) -> str:
        """Digest of the engine, which its prompts have."""
        return digest_of(self.running.launch, self.running.record.build)

    @property
    def _folder(self) -> Path:
        return self.store.folder(self.key)

    @property
    def is_on(self) -> bool:
        """Whether they are saved, if the engine was started with a folder for them."""
        return self.store.limit_bytes > 0 and bool(self.running.record.build) and not self._unsaved_reason

    @property
    def _unsaved_reason(self) -> str:
        return unsaved_reason(self.running.launch.plan, self.running.record.api_key)

    async def keep_saved(
        self, used_at: Callable[[], float], may_save: Callable[[], bool], save: Callable[[], Awaitable[int | None]]
    ) -> Never:
        """Save the prompts whenever the engine has become idle, in case it is killed; never return.

        Args:
            used_at: Returns when the engine last worked.
            may_save: Whether they may be saved now.
            save: Calls `save`.
        """
        saved_at: float = -math.inf
        written: int | None = 0
        while written is not None:
            used = used_at()
            due = save_due_at(used, saved_at, self.store.paid_at) if may_save() else math.inf
            if (pause := due - trio.current_time()) > 0:
                await trio.sleep(min(pause, IDLE_SECONDS))
                continue
            saved_at, written = used, None
            with trio.move_on_after(SAVE_SECONDS):
                written = await save()
            self.store.paid_at = max(self.store.paid_at, trio.current_time()) + (written or 0) / WRITE_BYTES_PER_SECOND
        self.log.warning("prompts not saved until the engine stops", error=f"failed, or longer than {SAVE_SECONDS:g} s")
        await self.store.in_thread(prompt_files.remove_unfinished, self._folder)
        await trio.sleep_forever()

    async def save(self, now: str) -> int | None:
        """Save the slots that have no request; return the size of the files, or None after an error.

        The caller sets the deadline.

        An engine that was started without this answers with an error, and nothing is saved.
        """
        async with self._lock:
            return await self._save(now) if self.is_on and self.key not in self.store.deleted else 0

    async def _save(self, now: str) -> int | None:
        saved: list[tuple[int, int]] = []
        try:
            if await self.store.in_thread(prompt_files.is_refused, self._folder, self.digest):
                return 0
            await self.store.in_thread(make_private_folder, self._folder)  # it may have been cleared
            for slot in await self._slots():
                tokens = slot.get("n_prompt_tokens", 0)  # a slot without a request so far reports none
                if slot["is_processing"] or not MIN_TOKENS <= tokens < slot["n_ctx"] - 1:
                    continue
                if self._is_saved(slot["id"], slot["id_task"]) or not self._has_space(tokens):
                    continue
                if (written := await self._save_slot(slot["id"], now)) is None:
                    break
                self._saved[slot["id"]] = slot["id_task"]
                saved.append(written)
        except (HttpError, OSError, ValueError, KeyError, TypeError) as error:
            self.log.warning("prompts not saved", error=str(error))
            return None
        if saved:
            self.log.info("prompts saved", prompts=len(saved), tokens=sum(count for count, _ in saved))
        return sum(size for _, size in saved)

    def _prompt(self, slot: int, now: str = "") -> SavedPrompt:
        return SavedPrompt(self.digest, self.owner, slot, 0, 0, "", 0.0, now)

    def _is_saved(self, slot: int, request: int) -> bool:
        """Whether the file of a slot has its last request; it may have been removed since it was written."""
        return self._saved.get(slot) == request and (self._folder / self._prompt(slot).name).exists()

    async def _save_slot(self, slot: int, now: str) -> tuple[int, int] | None:
        """Save one slot; return its number of tokens and its size, or None if the engine refuses."""
        prompt = self._prompt(slot, now)
        answer = await self._request("POST", f"/slots/{slot}?action=save", {"filename": prompt.new_name})
        if answer.status != 200:
            return None
        count = int(json.loads(answer.body)["n_saved"])
        cost = float(count) * self.running.launch.weights.size_bytes
        prompt = attrs.evolve(prompt, tokens=count, priority=cost)
        await self.store.in_thread(prompt_files.read_tokens, self._folder / prompt.new_name, count)
        root, limit = self.store.root, self.store.limit_bytes
        return count, await self.store.in_thread(prompt_files.add, root, self._folder, prompt, limit)

    def _has_space(self, tokens: int) -> bool:
        """Whether a slot of this size fits, by the estimate of the engine's memory."""
        launch, limit, free = self.running.launch, self.store.limit_bytes, free_bytes(self.store.root)
        demand, parts = launch.plan.demand, launch.estimate.components if launch.estimate is not None else ()
        cache_bytes = sum(part.size_bytes for part in parts if part.name in _SLOT_PARTS)
        if demand is not None and demand.context and cache_bytes:
            needed = cache_bytes * min(tokens / demand.context, 1.0)
        else:
            needed = float(limit)
        return needed <= limit and (free is None or free - needed >= RESERVE_BYTES)

    async def restore(self) -> str:
        """Restore and verify what was saved of this launch; return what to report, "" for nothing.

        Raises:
            RestoreError: A restore has failed; what was saved is removed, and the engine has to be replaced.
        """
        if not self.is_on or await self.store.in_thread(prompt_files.is_refused, self._folder, self.digest):
            return await self.report()
        restored, error = [], ""
        with trio.move_on_after(RESTORE_SECONDS) as bound:
            try:
                for prompt in await self.store.in_thread(prompt_files.take, self._folder, self.digest, self.owner):
                    restored.append((await self._restore_slot(prompt), prompt.tokens))
                    self._saved = {slot["id"]: slot.get("id_task", -1) for slot in await self._slots()}
                    if not restored[-1][0]:
                        await self.store.in_thread(prompt_files.refuse, self._folder, self.digest)
                        raise ValueError("the engine computes it again")
                    await self.store.in_thread(prompt_files.put_back, self._folder, prompt)
            except (HttpError, OSError, ValueError, KeyError, TypeError) as failure:
                error = str(failure)
        if bound.cancelled_caught or error:
            raise RestoreError(error or f"not finished within {RESTORE_SECONDS:g} s")
        cached, tokens = (sum(column) for column in zip(*restored, strict=True)) if restored else (0, 0)
        if not restored:
            return await self.report()
        self.log.info("prompts restored", prompts=len(restored), tokens=tokens, cached_tokens=cached)
        return f"{cached} of {tokens} tokens of saved prompts restored"

    async def report(self) -> str:
        """Return whether the prompts of this engine are saved, or why not; "" if this host saves none."""
        if not self.store.limit_bytes or not self.running.record.build:
            return ""
        if why := self._unsaved_reason:
            return f"prompts are not saved: {why}"
        if await self.store.in_thread(prompt_files.is_refused, self._folder, self.digest):
            return "prompts are not saved: this engine computes restored ones of this model again"
        with trio.move_on_after(health.ANSWER_SECONDS), contextlib.suppress(HttpError):
            answer = await self._request("POST", "/slots/0?action=save", {"filename": ""})
            refused = answer.status == NOT_SUPPORTED
            return "prompts are not saved: the engine has no folder for them" if refused else "prompts are saved"
        return ""

    async def _restore_slot(self, prompt: SavedPrompt) -> int:
        """Restore one slot; return `cache_n` of a request for its tokens and one more."""
        slot, path = prompt.slot, self._folder / prompt.name
        tokens = await self.store.in_thread(prompt_files.read_tokens, path, prompt.tokens)
        answer = await self._request("POST", f"/slots/{slot}?action=restore", {"filename": prompt.name})
        if answer.status != 200:
            raise ValueError(f"the engine answers {answer.status}")
        # The state of a recurrent model can only be continued: without one more token it would be computed again.
        probe = {"prompt": [*tokens, tokens[-1]], "id_slot": slot, "n_predict": 0, "cache_prompt": True}
        answer = await self._request("POST", "/completion", probe)
        if answer.status != 200:
            raise ValueError(f"the engine answers {answer.status} to the first request")
        return int(json.loads(answer.body)["timings"]["cache_n"])

    async def _slots(self) -> list[dict[str, Any]]:
        answer = await self._request("GET", "/slots")
        slots = json.loads(answer.body)
        if answer.status != 200 or not isinstance(slots, list) or not all(isinstance(slot, dict) for slot in slots):
            raise ValueError(f"the engine answers {answer.status} to GET /slots, without a list of slots")
        return slots

    async def _request(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Response:
        engine = self.running.engine
        headers = engine.credentials.with_("Content-Type", "application/json")
        content = b"" if body is None else json.dumps(body).encode()
        return await engine.http.request(method, engine.url + path, headers=headers, body=content)
