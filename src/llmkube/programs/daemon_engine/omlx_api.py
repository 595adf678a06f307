"""oMLX's HTTP API, as far as one model needs it.

Facts: `omlx/server.py`, `omlx/engine_pool.py` and `omlx/model_discovery.py` of https://github.com/jundot/omlx. There is
no request that loads a model: the first one that names it does. One that names no model of the server is answered by
its default model, if its owner has set that; so a name is looked for in the list before it is asked for.
"""

from typing import Any, Final
from urllib.parse import quote

import attrs

from llmkube.base.http.client import HttpClient
from llmkube.base.http.message import Headers, Response
from llmkube.programs.daemon_engine.decisions import UNKNOWN_RELEASE
from llmkube.programs.daemon_engine.server import REQUEST_SECONDS, DaemonError, DaemonHttp, DaemonLateError, to_json

LOAD_SECONDS: Final = 3600.0
"""For a load, in which the server says nothing at all."""

UNLOAD_SECONDS: Final = 3.0
"""For an unload: it is answered when the engine has stopped."""

NAME: Final = "oMLX"

_LIST_BYTES: Final = 8 << 20
_RETRYABLE: Final = frozenset({408, 409, 429})
"""Refusals that may be none a moment later, such as while another client's load is under way."""


@attrs.frozen
class ModelEntry:
    """A model of the server's list.

    Attributes:
        id: What it is called.
        path: Its folder; "" where that is not said.
        loaded: Whether it is in memory.
        loading: Whether it is about to be.
        size: What it takes there, in bytes; 0 where that is not said.
    """

    id: str
    path: str
    loaded: bool
    loading: bool
    size: int


@attrs.frozen
class OmlxApi:
    """One server.

    Attributes:
        http: The way to it.
        url: Where it is.
        key: What it asks for; "" where it asks for none.
    """

    http: HttpClient
    url: str
    key: str = attrs.field(default="", repr=False)

    @property
    def headers(self) -> Headers:
        """What requests have to carry."""
        kind = {"Content-Type": "application/json"}
        return Headers.of(kind | ({"Authorization": f"Bearer {self.key}"} if self.key else {}))

    @property
    def _api(self) -> DaemonHttp:
        return DaemonHttp(self.http, self.url, NAME, self.headers)

    async def is_omlx(self) -> bool:
        """Whether what answers is an oMLX; it says so without a key.

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
        """Return its release, or `UNKNOWN_RELEASE` of one that has no such path.

        Raises:
            DaemonError: It does not answer, or asks for another key.
        """
        try:
            reply = (await self._api.get_object("/api/status")).get("version")
        except DaemonError as error:
            if error.status == 404:
                return UNKNOWN_RELEASE
            raise
        return reply if isinstance(reply, str) and reply else UNKNOWN_RELEASE

    async def models(self) -> tuple[ModelEntry, ...]:
        """Return its models, loaded or not.

        Raises:
            DaemonError: It does not answer, asks for another key, or says something else.
        """
        answer = await self._api.call(REQUEST_SECONDS, "GET", "/v1/models/status", max_bytes=_LIST_BYTES)
        models = self._api.checked_object(answer).get("models")
        if not isinstance(models, list):
            raise DaemonError("oMLX's list of models is no list")
        return tuple(_entry(each) for each in models if isinstance(each, dict))

    async def load(self, name: str, *, embeds: bool = False) -> None:
        """Have it load a model, by the smallest request that needs it.

        Args:
            name: The model's id.
            embeds: Whether it computes embeddings alone.

        Raises:
            DaemonError: It did not, or another model has answered.
        """
        path, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        if embeds:
            path, body = "/v1/embeddings", {"input": "hi"}
        answer = await self._api.call(LOAD_SECONDS, "POST", path, to_json({"model": name, **body}))
        if answer.status in _RETRYABLE:
            raise DaemonError(str(self._api.refusal(answer)))
        reply = self._api.checked_object(answer)
        if "error" in reply:  # its head is sent before the model is loaded
            raise DaemonError(str(self._api.refusal(answer)))
        if reply.get("model", name) != name:
            raise DaemonError(f"oMLX was asked for {name}, and {str(reply['model'])[:100]} has answered")

    async def unload(self, name: str) -> None:
        """Have it unload a model: by the path of its API, and by that of its pages where it lacks the first.

        Raises:
            DaemonError: It did not take that.
        """
        where = f"models/{quote(name, safe='')}/unload"
        answer = await self._api.call(UNLOAD_SECONDS, "POST", f"/v1/{where}")
        if _is_unknown_path(answer, self._api):
            answer = await self._api.call(UNLOAD_SECONDS, "POST", f"/admin/api/{where}")
            if answer.status in (401, 403):
                raise DaemonError(
                    "this oMLX takes an unload by its own pages alone: install a newer one", answer.status
                )
        if answer.status == 400:  # it is not loaded
            return
        self._api.checked_object(answer)


def _is_unknown_path(answer: Response, daemon: DaemonHttp) -> bool:
    """Tell a path that a release does not have from a model that it does not know."""
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
