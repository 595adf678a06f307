"""The parts of oMLX's HTTP API that one model needs.

Sources: `omlx/server.py`, `omlx/engine_pool.py` and `omlx/model_discovery.py` of https://github.com/jundot/omlx. There
is no request that loads a model: the first request for a model loads it. If the owner has set a default model, that one
answers requests for unknown models; so a model is searched for in the list before it is requested.
"""

from typing import Any, Final
from urllib.parse import quote

import attrs

from llmkube.base.http.client import HttpClient
from llmkube.base.http.message import Headers, Response
from llmkube.programs.daemon_engine.decisions import UNKNOWN_RELEASE
from llmkube.programs.daemon_engine.server import REQUEST_SECONDS, DaemonError, DaemonHttp, DaemonLateError, to_json

LOAD_SECONDS: Final = 3600.0
"""Timeout of a load, during which the server reports nothing."""

UNLOAD_SECONDS: Final = 3.0
"""Timeout of an unload, which returns when the engine has stopped."""

NAME: Final = "oMLX"

DEFAULT_PORT: Final = 8000
PORT_VARIABLE: Final = "OMLX_PORT"
"""oMLX's own variable."""

KEY_FILE_VARIABLE: Final = "LLMKUBE_OMLX_KEY_FILE"
START_VARIABLE: Final = "LLMKUBE_OMLX_STARTUP_SECONDS"

_LIST_BYTES: Final = 8 << 20
_RETRYABLE: Final = frozenset({408, 409, 429})
"""Statuses after which a retry may succeed, such as while another client loads the model."""


@attrs.frozen
class ModelEntry:
    """A model in the server's list.

    Attributes:
        path: Folder of the model; empty if not reported.
        loaded: Whether it is in memory.
        loading: Whether it is being loaded.
        size: Memory that it takes, in bytes; 0 if not reported.
    """

    id: str
    path: str
    loaded: bool
    loading: bool
    size: int


@attrs.frozen
class OmlxApi:
    """API of one server.

    Attributes:
        key: The server's API key; empty if it requires none.
    """

    http: HttpClient
    url: str
    key: str = attrs.field(default="", repr=False)

    @property
    def headers(self) -> Headers:
        """Headers for requests."""
        kind = {"Content-Type": "application/json"}
        return Headers.of(kind | ({"Authorization": f"Bearer {self.key}"} if self.key else {}))

    @property
    def _api(self) -> DaemonHttp:
        return DaemonHttp(self.http, self.url, NAME, self.headers)

    async def is_omlx(self) -> bool:
        """Return whether the server is oMLX; this request needs no key.

        Raises:
            DaemonError: Nothing answers, or not in time.
        """
        try:
            return "engine_pool" in await self._api.get_object("/health")
        except DaemonError as error:
            if error.gone or isinstance(error, DaemonLateError):
                raise
            return False

    async def version(self) -> str:
        """Return the server's release, or `UNKNOWN_RELEASE` if it does not report one.

        Raises:
            DaemonError: The server does not answer, or requires another key.
        """
        try:
            reply = (await self._api.get_object("/api/status")).get("version")
        except DaemonError as error:
            if error.status == 404:
                return UNKNOWN_RELEASE
            raise
        return reply if isinstance(reply, str) and reply else UNKNOWN_RELEASE

    async def models(self) -> tuple[ModelEntry, ...]:
        """Return the server's models, loaded or not.

        Raises:
            DaemonError: The server does not answer, requires another key, or the response is malformed.
        """
        answer = await self._api.call(REQUEST_SECONDS, "GET", "/v1/models/status", max_bytes=_LIST_BYTES)
        models = self._api.checked_object(answer).get("models")
        if not isinstance(models, list):
            raise DaemonError("oMLX's list of models is not a list")
        return tuple(_entry(each) for each in models if isinstance(each, dict))

    async def load(self, name: str, *, embeds: bool = False) -> None:
        """Load a model by a minimal request to it.

        Args:
            name: Id of the model.
            embeds: Whether it only computes embeddings.

        Raises:
            DaemonError: The model was not loaded, or another model has answered.
        """
        path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        if embeds:
            path, body = "/v1/embeddings", {"input": "hi"}
        answer = await self._api.call(LOAD_SECONDS, "POST", path, to_json({"model": name, **body}))
        if answer.status in _RETRYABLE:
            raise DaemonError(str(self._api.refusal(answer)))
        reply = self._api.checked_object(answer)
        if "error" in reply:  # the head is sent before the model is loaded
            raise DaemonError(str(self._api.refusal(answer)))
        if reply.get("model", name) != name:
            raise DaemonError(f"oMLX was asked for {name}, but {str(reply['model'])[:100]} answered")

    async def unload(self, name: str) -> None:
        """Unload a model: by the API's path, or by that of the admin pages if a release lacks the former.

        Raises:
            DaemonError: The request was not accepted.
        """
        where = f"models/{quote(name, safe='')}/unload"
        answer = await self._api.call(UNLOAD_SECONDS, "POST", f"/v1/{where}")
        if _is_unknown_path(answer, self._api):
            answer = await self._api.call(UNLOAD_SECONDS, "POST", f"/admin/api/{where}")
            if answer.status in (401, 403):
                raise DaemonError(
                    "this oMLX unloads models only from its admin pages; install a newer release", answer.status
                )
        if answer.status == 400:  # the model is not loaded
            return
        self._api.checked_object(answer)


def _is_unknown_path(answer: Response, daemon: DaemonHttp) -> bool:
    """Return whether a release lacks the path, as opposed to not knowing the model."""
    return answer.status == 405 or (answer.status == 404 and "Model not found" not in str(daemon.refusal(answer)))


def _entry(reply: dict[str, Any]) -> ModelEntry:
    sizes = (reply.get("actual_size"), reply.get("estimated_size"))
    return ModelEntry(
        id=str(reply.get("id", "")),
        path=str(reply.get("model_path") or ""),
        loaded=reply.get("loaded") is True,
        loading=reply.get("is_loading") is True,
        size=next((size for size in sizes if isinstance(size, int) and size > 0), 0),
    )
