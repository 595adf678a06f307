"""One question to one model, the way any client would put it: a POST to the gateway."""

import json

import trio

from llmkube.base.http.client import HttpClient
from llmkube.base.http.message import Headers

_NOT_YET = frozenset({404, 502, 503})  # the gateway does not know the model yet, has lost it, or knows that it loads
_PAUSE_SECONDS = 0.25


class GivenUpError(Exception):
    """The question will not be answered; the text says why. It stays inside `llmkube up`."""


async def ask(client: HttpClient, gateway_url: str, model_id: str, question: str) -> str:
    """Return a model's answer at temperature 0, asking again while the gateway says "not yet".

    Raises:
        GivenUpError: The gateway or the engine refuses.
        HttpError: The gateway cannot be reached.
    """
    body = {"model": model_id, "temperature": 0, "messages": [{"role": "user", "content": question}]}
    while True:
        response = await client.request(
            "POST",
            f"{gateway_url}/v1/chat/completions",
            headers=Headers.of({"Content-Type": "application/json"}),
            body=json.dumps(body).encode(),
        )
        if response.status == 200:
            return read_answer(response.body)
        if response.status not in _NOT_YET:
            raise GivenUpError(f"the question was refused with status {response.status}: {_error_text(response.body)}")
        await trio.sleep(_PAUSE_SECONDS)


def read_answer(body: bytes) -> str:
    """Return the text in a chat completion.

    Raises:
        GivenUpError: It is not one.
    """
    try:
        text = json.loads(body)["choices"][0]["message"]["content"]
        if not isinstance(text, str):  # null where a model has thought and said nothing
            raise TypeError("no text")
        return text.strip()
    except (ValueError, LookupError, TypeError) as exc:
        raise GivenUpError(f"the engine's answer is not a chat completion: {body[:200]!r}") from exc


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode("utf-8", "replace")
