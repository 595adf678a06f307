"""A connection to a simulated engine without a server: the engine's response is made in the task that reads it.

The client is the real one, and sends HTTP. A task and a parser for each engine would take a tenth of a run.
"""

import json
import re

import attrs
import trio

from llmkube.supervisor.values.proxy_config import IN_FLIGHT_PATH

_OPEN = ("/health",)
"""Paths that every build of llama.cpp's server serves without a key; some also serve `/v1/models`."""

METRICS = {
    "llamacpp": "llamacpp:requests_processing {0}\nllamacpp:n_decode_total {1}\nllamacpp:tokens_predicted_total {1}\n",
    "llmkube": "llmkube:requests_processing {}\nllmkube:tokens_predicted_total {}\n",
    "vllm": 'vllm:num_requests_running{{m="a"}} {}\nvllm:generation_tokens_total{{m="a"}} {}\n',
    "proxy": "{}",
}
"""Metrics of each engine, by their prefix, and of the proxies in front of engines."""


@attrs.define(eq=False)
class Connection(trio.abc.Stream):
    """One keep-alive connection to an engine, seen from its client; it closes when the engine exits."""

    child: object
    requires_key: bool = False
    _path: str = ""
    _is_authorized: bool = False

    async def send_all(self, data):
        await trio.lowlevel.checkpoint()
        if self.child.exit is not None:
            raise trio.BrokenResourceError
        self._path = data.split(b" ", 2)[1].decode()
        key = re.search(rb"\r\nAuthorization: Bearer (\S+)\r\n", data)
        self._is_authorized = not self.requires_key or (key is not None and key[1].decode() in self.child.api_keys)

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes=None):
        child = self.child
        child.asked += 1
        await trio.lowlevel.checkpoint()
        if child.slow_seconds:
            with trio.move_on_after(child.slow_seconds):
                await child.ended.wait()
        if child.frozen or child.mute:
            await child.ended.wait()
        return b"" if child.exit is not None else self._response()

    def _response(self):
        child = self.child
        child.live_on()
        status, body = 200, "{}"
        if not (self._is_authorized or self._path in _OPEN):
            status = 401
        elif self._path == "/metrics":
            child.answered += 1
            body = METRICS[child.runtime].format(child.in_flight + child.requests, child.batches)
        elif self._path == IN_FLIGHT_PATH:  # of its proxy
            body = METRICS["proxy"].format(child.in_flight + child.requests)
        elif self._path == "/v1/completions":
            status = 200 if child.script.computes else 500
            child.tokens_given += 1
            child.batches += 1
        elif self._path == "/props":
            version = child.keeper.build if child.keeper is not None else ""
            body = json.dumps({"build_info": version})
        elif self._path == "/v1/models":
            body = json.dumps({"data": [{"id": child.script.model_id or child.name}]})
        elif not child.ready:
            status = 503
        return f"HTTP/1.1 {status} Simulated\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()

    async def aclose(self):
        await trio.lowlevel.checkpoint()
