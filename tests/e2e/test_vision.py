"""A picture reaches the engine: a real `llmkube up` with a tiny model whose answer depends on what it sees."""

import base64
import json

import pytest

from e2e.one_machine import eventually, open_up_with, served
from e2e.up_process import run_program
from llmkube.base.http.client import open_http_client
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from tiny_projectors import ColourModel, Projector, png

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: sight}
spec:
  backends: [{name: local, inferenceServiceRef: {name: eyes}}]
  defaultRoute: local
"""

RED, BLUE = (base64.b64encode(png(*colour)).decode() for colour in ((255, 0, 0), (0, 0, 255)))


def chat(picture):
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]}


def responses(picture):
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{picture}"}
    return "/v1/responses", {"input": [{"role": "user", "content": [part, {"type": "input_text", "text": "?"}]}]}


def messages(picture):
    part = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}
    content = [part, {"type": "text", "text": "?"}]
    return "/v1/messages", {"max_tokens": 8, "messages": [{"role": "user", "content": content}]}


def ollama(picture):
    turn = {"role": "user", "content": "?", "images": [picture]}
    return "/api/chat", {"stream": False, "options": {"temperature": 0}, "messages": [turn]}


def text_of(answer):
    """Return the text of an answer in any of the four APIs."""
    body = json.loads(answer.body)
    if "choices" in body:
        return body["choices"][0]["message"]["content"]
    if "output" in body:
        return body["output"][-1]["content"][0]["text"]
    return body["content"][0]["text"] if "content" in body else body["message"]["content"]


async def test_a_picture_decides_the_answer_in_every_api(tmp_path):
    """The projector beside the model is found; a red picture is answered with R, a blue one with B."""
    folder = tmp_path / "models"
    folder.mkdir()
    ColourModel(folder / "colour-F32.gguf")
    Projector(folder / "mmproj-F16.gguf", "gemma3")
    document = served("eyes", str(folder / "colour-F32.gguf")).replace("contextSize: 512", "contextSize: 2048")
    async with open_up_with(tmp_path, documents=[document, ROUTER]) as up, open_http_client() as http:

        async def ask(path, body):
            text = json.dumps({"model": "eyes", "temperature": 0, **body}).encode()
            return await http.request("POST", up.gateway + path, body=text)

        def is_answered(answer):
            return answer.status == 200

        await eventually(lambda: ask(*chat(RED)), is_answered)
        for api in (chat, responses, messages, ollama):
            seen = [await ask(*api(picture)) for picture in (RED, BLUE, RED)]
            assert [text_of(answer) for answer in seen] == ["R", "B", "R"], api
        path, body = chat(BLUE)
        assert text_of(await eventually(lambda: ask(f"/routers/default/sight{path}", body), is_answered)) == "B"
        for url in ("http://127.0.0.1:1/a.png", "https://example.com/a.png", "file:///etc/passwd"):
            path, body = chat(RED)
            body["messages"][0]["content"][0]["image_url"]["url"] = url
            refused = await ask(path, body)
            assert (refused.status, b"nothing is fetched" in refused.body) == (400, True)
        listed = json.loads((await http.request("GET", f"{up.gateway}/v1/models/eyes")).body)
        assert "image" in listed["architecture"]["input_modalities"]
        shown = await http.request("POST", f"{up.gateway}/api/show", body=b'{"model": "eyes"}')
        assert "vision" in json.loads(shown.body)["capabilities"]
        model = await up.client.get(Model, Key("default", "eyes"))
        assert model.status.projector == "mmproj-F16.gguf (gemma3: pictures)"
        _, out, _ = await run_program(tmp_path, "status", "eyes", kubeconfig=up.state / "kubeconfig")
        assert "mmproj-F16.gguf" in out
