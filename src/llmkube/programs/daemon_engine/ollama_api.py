"""Ollama's HTTP API, as far as one model needs it.

Facts: `docs/api.md`, `server/routes.go` and `server/create.go` of https://github.com/ollama/ollama, 0.17.4. Progress
comes as one JSON object a line; an error in the middle of it comes as a line too, after a 200.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from llmkube.base.http.client import HttpClient, SendBytes
from llmkube.base.http.errors import ConnectError, HttpError
from llmkube.base.http.message import Headers
from llmkube.programs.daemon_engine.server import (
    REQUEST_SECONDS,
    DaemonError,
    DaemonHttp,
    DaemonLateError,
    error_text,
    to_json,
)

IDLE_SECONDS: Final = 600.0
"""So long a pull or a creation may say nothing: the server hashes the file of a large model in silence."""

LOAD_SECONDS: Final = 3600.0
"""For a load, in which the server says nothing at all."""

PIECE_BYTES: Final = 4 << 20

_JSON: Final = Headers.of({"Content-Type": "application/json"})
_SHOW_BYTES: Final = 64 << 20
_LINE_BYTES: Final = 1 << 20
_FROM: Final = re.compile(r"^FROM\s+\S*(sha256[-:][0-9a-f]{64})", re.MULTILINE)
_FOLDER: Final = re.compile(r"^FROM\s+(/.*)/blobs/sha256[-:][0-9a-f]{64}", re.MULTILINE)

ProgressCallback = Callable[[str, int, int], None]
"""Gets what is done, and how many bytes of how many; 0 where there is no number."""


@attrs.frozen
class OllamaApi:
    """One server.

    Attributes:
        http: The way to it.
        url: Where it is.
    """

    http: HttpClient
    url: str

    @property
    def _api(self) -> DaemonHttp:
        return DaemonHttp(self.http, self.url, "Ollama", _JSON)

    async def version(self) -> str:
        """Return its release.

        Raises:
            DaemonError: It does not answer, or is no Ollama.
        """
        reply = (await self._api.get_object("/api/version")).get("version")
        if not isinstance(reply, str) or not reply:
            raise DaemonError(f"what answers at {self.url} is no Ollama: it tells no version")
        return reply

    async def loaded(self) -> tuple[str, ...]:
        """Return the names of what it lists as loaded.

        Raises:
            DaemonError: It does not answer, or says something else.
        """
        models = (await self._api.get_object("/api/ps")).get("models")
        if models is None:
            return ()
        if not isinstance(models, list):
            raise DaemonError("Ollama's list of loaded models is no list")
        return tuple(str(each.get("name", "")) for each in models if isinstance(each, dict))

    async def blob_of(self, name: str) -> str | None:
        """Return the file of weights of a model in its store, as `sha256-…`; None if it has no such model.

        Raises:
            DaemonError: It does not answer, or the model's weights are no file in GGUF.
        """
        answer = await self.show(name, verbose=False)
        if answer is None:
            return None
        reply = self._api.parse(answer)
        found = _FROM.search(str(reply.get("modelfile", "")))
        if found is None:
            raise DaemonError(f"Ollama names no file of weights for {name}: only models in GGUF are served here", 400)
        return found[1].replace(":", "-")

    async def folder_of(self, name: str) -> Path | None:
        """Return the folder of models that has a model; None if it has no such model, or does not say.

        Raises:
            DaemonError: It does not answer.
        """
        answer = await self.show(name, verbose=False)
        found = _FOLDER.search(str(self._api.parse(answer).get("modelfile", ""))) if answer is not None else None
        return Path(found[1]) if found else None

    async def show(self, name: str, *, verbose: bool = True) -> bytes | None:
        """Return what it says of a model in its store, as JSON; None if it has no such model.

        Raises:
            DaemonError: It does not answer.
        """
        body = to_json({"model": name, "verbose": verbose})
        answer = await self._api.call(REQUEST_SECONDS * 5, "POST", "/api/show", body, max_bytes=_SHOW_BYTES)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._api.refusal(answer)
        return answer.body

    async def sizes(self) -> dict[str, int]:
        """Return the bytes of each model in its store, by name.

        Raises:
            DaemonError: It does not answer, or says something else.
        """
        models = (await self._api.get_object("/api/tags")).get("models")
        found = [each for each in models or () if isinstance(each, dict)] if isinstance(models, list) else []
        return {str(each.get("name", "")): _count(each.get("size")) for each in found}

    async def has_blob(self, digest: str) -> bool:
        """Whether a file with this digest is in its store."""
        answer = await self._api.call(REQUEST_SECONDS * 5, "HEAD", f"/api/blobs/sha256:{digest}")
        return answer.status == 200

    async def upload(self, digest: str, path: Path, report: ProgressCallback) -> None:
        """Put a file into its store.

        Raises:
            DaemonError: It did not take it, or it hashes to something else.
            OSError: The file cannot be read.
        """
        size = (await trio.Path(path).stat()).st_size

        async def write(send: SendBytes) -> None:
            sent = 0
            async with await trio.open_file(path, "rb") as file:
                while piece := await file.read(min(PIECE_BYTES, size - sent)):
                    await send(piece)
                    sent += len(piece)
                    report("copying the weights into Ollama's store", sent, size)

        try:
            answer = await self.http.upload(f"{self.url}/api/blobs/sha256:{digest}", size, write)
        except HttpError as error:
            raise DaemonError(f"Ollama did not take the weights: {error}", gone=True) from error
        if answer.status not in (200, 201):
            raise self._api.refusal(answer)

    async def create(self, name: str, source: Mapping[str, Any], report: ProgressCallback) -> None:
        """Make a model of a file in its store, or of another model.

        Args:
            name: What it is to be called.
            source: `files` or `from`, and `parameters`, as the API has them.
            report: Told of the progress.

        Raises:
            DaemonError: It did not.
        """
        await self._stream_progress("/api/create", {"model": name, **source}, report)

    async def pull(self, name: str, report: ProgressCallback) -> None:
        """Have it fetch a model of its library.

        Raises:
            DaemonError: It did not.
        """
        await self._stream_progress("/api/pull", {"model": name}, report)

    async def load(self, name: str, keep_alive: str, *, embeds: bool = False) -> None:
        """Have it load a model, and keep it for so long.

        Args:
            name: The model's.
            keep_alive: How long, as Ollama writes it.
            embeds: Whether it computes embeddings alone: Ollama then refuses a request for text.

        Raises:
            DaemonError: It did not.
        """
        await self._set_keep_alive(LOAD_SECONDS, name, keep_alive, embeds=embeds)

    async def renew(self, name: str, keep_alive: str, *, embeds: bool = False) -> None:
        """Prolong the stay of a model that is loaded; the arguments are those of `load`.

        Raises:
            DaemonError: It did not, in time.
        """
        await self._set_keep_alive(REQUEST_SECONDS * 5, name, keep_alive, embeds=embeds)

    async def unload(self, name: str) -> None:
        """Tell it to unload a model; it answers before that is done.

        Raises:
            DaemonError: It did not take that.
        """
        body = to_json({"model": name, "keep_alive": 0, "stream": False})
        self._api.checked_object(await self._api.call(REQUEST_SECONDS, "POST", "/api/generate", body))

    async def _set_keep_alive(self, seconds: float, name: str, keep_alive: str, *, embeds: bool) -> None:
        path, minimal = ("/api/embed", {"input": ""}) if embeds else ("/api/generate", {"stream": False})
        self._api.checked_object(
            await self._api.call(seconds, "POST", path, to_json({"model": name, "keep_alive": keep_alive, **minimal}))
        )

    async def _stream_progress(self, path: str, body: Mapping[str, Any], report: ProgressCallback) -> None:
        """Follow progress to its end, which is `success`: an answer that stops before it has failed."""
        done = False
        with trio.move_on_after(IDLE_SECONDS) as idle:
            try:
                async with self.http.open_stream("POST", self.url + path, headers=_JSON, body=to_json(body)) as answer:
                    lines = bytearray()
                    while piece := await answer.receive_some():
                        idle.deadline = trio.current_time() + IDLE_SECONDS
                        lines += piece
                        *complete, rest = bytes(lines).split(b"\n")
                        lines = bytearray(rest)
                        if len(lines) > _LINE_BYTES:
                            raise DaemonError("Ollama's answer has a line without an end")
                        for line in filter(None, complete):
                            done = _progress(self._api.parse(line), line, answer.status, report)
                    if lines:
                        done = _progress(self._api.parse(bytes(lines)), bytes(lines), answer.status, report)
            except HttpError as error:
                raise DaemonError(f"Ollama broke off: {error}", gone=isinstance(error, ConnectError)) from error
        if idle.cancelled_caught:
            raise DaemonLateError(f"Ollama has said nothing of {path} for {IDLE_SECONDS:g} s")
        if not done:
            raise DaemonError(f"Ollama's answer to {path} ends before its success")


def _progress(reply: Mapping[str, Any], line: bytes, status: int, report: ProgressCallback) -> bool:
    """Tell of a line; return whether it is the last one of a success."""
    if "error" in reply or status >= 400:
        raise DaemonError(error_text(reply, line), status if status >= 400 else _status_of(str(reply.get("error", ""))))
    text = str(reply.get("status", ""))[:200]
    report(text, _count(reply.get("completed")), _count(reply.get("total")))
    return text == "success"


def _status_of(error: str) -> int:
    """Return the status that an error would have had, were its head not sent: what does not exist stays away."""
    return 404 if re.search(r"file does not exist|not found", error) else 0


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
