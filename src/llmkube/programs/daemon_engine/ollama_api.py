"""The parts of Ollama's HTTP API that one model needs.

Sources: `docs/api.md`, `server/routes.go` and `server/create.go` of https://github.com/ollama/ollama, 0.17.4. Progress
is reported as one JSON object per line; an error after the 200 is such a line as well.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

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
"""Limit for a pull or a creation without output: the server reports nothing while it hashes a large file."""

LOAD_SECONDS: Final = 3600.0
"""Timeout of a load, during which the server reports nothing."""

RENEW_SECONDS: Final = 5 * REQUEST_SECONDS
"""Timeout of a renewal, which loads nothing."""

PIECE_BYTES: Final = 4 << 20

DEFAULT_PORT: Final = 11434
_WILDCARDS: Final = ("", "0.0.0.0", "[::]", "::")  # noqa: S104 - compared, not bound
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

_JSON: Final = Headers.of({"Content-Type": "application/json"})
_SHOW_BYTES: Final = 64 << 20
_LINE_BYTES: Final = 1 << 20
_FROM: Final = re.compile(r"^FROM\s+\S*(sha256[-:][0-9a-f]{64})", re.MULTILINE)
_FOLDER: Final = re.compile(r"^FROM\s+(/.*)/blobs/sha256[-:][0-9a-f]{64}", re.MULTILINE)

ProgressCallback = Callable[[str, int, int], None]
"""Called with a description, the bytes done and the total bytes; 0 if unknown."""


def daemon_url(environ: Mapping[str, str]) -> str:
    """Return the URL of Ollama's server by its own variable; loopback if it listens on all addresses."""
    given = environ.get("OLLAMA_HOST", "").strip().removeprefix("http://").rstrip("/")
    host, colon, port = given.rpartition(":")
    if not colon or given.endswith("]"):
        host, port = given, ""
    host = "127.0.0.1" if host in _WILDCARDS else host
    return f"http://{host}:{port if port.isdecimal() else DEFAULT_PORT}"


def address_problem(url: str) -> str:
    """Return why a server cannot be used: it is not on this machine, and its memory is not this host's; else ""."""
    if urlsplit(url).hostname in _LOOPBACK:
        return ""
    problem = f"OLLAMA_HOST names {url}, which is not on this machine: a model there uses the memory of another machine"
    return f"{problem}; unset it, or name 127.0.0.1:PORT"


@attrs.frozen
class OllamaApi:
    """API of one server."""

    http: HttpClient
    url: str

    @property
    def _api(self) -> DaemonHttp:
        return DaemonHttp(self.http, self.url, "Ollama", _JSON)

    async def version(self) -> str:
        """Return the server's release.

        Raises:
            DaemonError: The server does not answer, or is not Ollama.
        """
        reply = (await self._api.get_object("/api/version")).get("version")
        if not isinstance(reply, str) or not reply:
            raise DaemonError(f"the server at {self.url} is not Ollama: it reports no version")
        return reply

    async def loaded(self) -> tuple[str, ...]:
        """Return the names of the loaded models.

        Raises:
            DaemonError: The server does not answer, or the response is malformed.
        """
        models = (await self._api.get_object("/api/ps")).get("models")
        if not isinstance(models, list):
            raise DaemonError("Ollama's list of loaded models is not a list")
        return tuple(str(each.get("name", "")) for each in models if isinstance(each, dict))

    async def blob_of(self, name: str) -> str | None:
        """Return the weights file of a model in the store, as `sha256-…`; None if there is no such model.

        Raises:
            DaemonError: The server does not answer, or the weights are not a GGUF file.
        """
        answer = await self.show(name, verbose=False)
        if answer is None:
            return None
        reply = self._api.parse(answer)
        found = _FROM.search(str(reply.get("modelfile", "")))
        if found is None:
            raise DaemonError(f"Ollama reports no weights file for {name}: only GGUF models can be served", 400)
        return found[1].replace(":", "-")

    async def folder_of(self, name: str) -> Path | None:
        """Return the models folder with this model; None if there is no such model, or its folder is not reported.

        Raises:
            DaemonError: The server does not answer.
        """
        answer = await self.show(name, verbose=False)
        found = _FOLDER.search(str(self._api.parse(answer).get("modelfile", ""))) if answer is not None else None
        return Path(found[1]) if found else None

    async def show(self, name: str, *, verbose: bool = True) -> bytes | None:
        """Return the description of a model in the store, as JSON; None if there is no such model.

        Raises:
            DaemonError: The server does not answer.
        """
        body = to_json({"model": name, "verbose": verbose})
        answer = await self._api.call(REQUEST_SECONDS * 5, "POST", "/api/show", body, max_bytes=_SHOW_BYTES)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise self._api.refusal(answer)
        return answer.body

    async def sizes(self) -> dict[str, int]:
        """Return the size of each model in the store in bytes, by name.

        Raises:
            DaemonError: The server does not answer, or refuses the request.
        """
        models = (await self._api.get_object("/api/tags")).get("models")
        found = [each for each in models or () if isinstance(each, dict)] if isinstance(models, list) else []
        return {str(each.get("name", "")): _count(each.get("size")) for each in found}

    async def has_blob(self, digest: str) -> bool:
        """Return whether the store has a file with this digest."""
        answer = await self._api.call(REQUEST_SECONDS * 5, "HEAD", f"/api/blobs/sha256:{digest}")
        return answer.status == 200

    async def upload(self, digest: str, path: Path, report: ProgressCallback) -> None:
        """Upload a file into the store.

        Raises:
            DaemonError: The server did not accept the file, or its digest differs.
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
            raise DaemonError(f"Ollama did not accept the weights: {error}", gone=True) from error
        if answer.status not in (200, 201):
            raise self._api.refusal(answer)

    async def create(self, name: str, source: Mapping[str, Any], report: ProgressCallback) -> None:
        """Create a model from a file in the store, or from another model.

        Args:
            name: Name of the new model.
            source: `files` or `from`, and `parameters`, as in the API.
            report: Called with the progress.

        Raises:
            DaemonError: The model was not created.
        """
        await self._stream_progress("/api/create", {"model": name, **source}, report)

    async def pull(self, name: str, report: ProgressCallback) -> None:
        """Pull a model from Ollama's library into the store.

        Raises:
            DaemonError: The model was not pulled.
        """
        await self._stream_progress("/api/pull", {"model": name}, report)

    async def load(self, name: str, keep_alive: str, *, embeds: bool = False, seconds: float = LOAD_SECONDS) -> None:
        """Load a model with a keep-alive, or renew that of a loaded model.

        Args:
            name: Name of the model.
            keep_alive: Duration in Ollama's format.
            embeds: Whether it only computes embeddings: Ollama then rejects a request for text.
            seconds: Timeout.

        Raises:
            DaemonError: The model was not loaded in time.
        """
        path, minimal = ("/api/embed", {"input": ""}) if embeds else ("/api/generate", {"stream": False})
        body = to_json({"model": name, "keep_alive": keep_alive, **minimal})
        self._api.checked_object(await self._api.call(seconds, "POST", path, body))

    async def unload(self, name: str) -> None:
        """Request to unload a model; this returns before it is unloaded.

        Raises:
            DaemonError: The request was not accepted.
        """
        body = to_json({"model": name, "keep_alive": 0, "stream": False})
        self._api.checked_object(await self._api.call(REQUEST_SECONDS, "POST", "/api/generate", body))

    async def _stream_progress(self, path: str, body: Mapping[str, Any], report: ProgressCallback) -> None:
        """Read a stream of progress until `success`; a response that ends earlier has failed."""
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
                            raise DaemonError("Ollama's response has a line that is too long")
                        for line in filter(None, complete):
                            done = _progress(self._api.parse(line), line, answer.status, report)
                    if lines:
                        done = _progress(self._api.parse(bytes(lines)), bytes(lines), answer.status, report)
            except HttpError as error:
                gone = isinstance(error, ConnectError)
                raise DaemonError(f"the connection to Ollama broke: {error}", gone=gone) from error
        if idle.cancelled_caught:
            raise DaemonLateError(f"Ollama has sent nothing for {path} in {IDLE_SECONDS:g} s")
        if not done:
            raise DaemonError(f"Ollama's response to {path} ended before success")


def _progress(reply: Mapping[str, Any], line: bytes, status: int, report: ProgressCallback) -> bool:
    """Report the progress of a line; return whether it is the final `success`."""
    if "error" in reply or status >= 400:
        raise DaemonError(error_text(reply, line), status if status >= 400 else _status_of(str(reply.get("error", ""))))
    text = str(reply.get("status", ""))[:200]
    report(text, _count(reply.get("completed")), _count(reply.get("total")))
    return text == "success"


def _status_of(error: str) -> int:
    """Return the status for an error after the head was sent: 404 for what does not exist, otherwise 0."""
    return 404 if re.search(r"file does not exist|not found", error) else 0


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
