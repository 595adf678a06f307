"""Requests of the page that are refused: foreign names and pages, no token, limited keys, unknown logs and actions."""

import json
from functools import partial

import pytest
import trio
import trio.testing

from http_lab import converse
from llmkube.base.errors import LLMKubeError
from llmkube.base.log import RecentLog
from llmkube.programs.page.feed import MAX_VIEWERS, Feed
from llmkube.programs.page.handler import Control, Page, is_public, load_files
from llmkube.programs.page.requests import RecentRequests
from llmkube.programs.page.state import Rates
from llmkube.router.policy.request_facts import Principal

TOKEN = "page-token-of-the-test"
WITH_TOKEN = f"X-LLMKube-Page-Token: {TOKEN}\r\n"
ACTION = json.dumps({"action": "stop", "service": "default/chat"})


async def nothing(*_):
    raise AssertionError("not a request of the page")


async def state(_rates):
    await trio.lowlevel.checkpoint()
    return {"services": {}}


def page(log=None, done=()):
    async def stop(wanted):
        await trio.lowlevel.checkpoint()
        service = wanted["service"]
        if service != "default/chat":
            raise LLMKubeError(f"there is no InferenceService {service}")
        done.append(service)
        return {"message": "stopped"}

    control = Control(TOKEN, {"stop": stop}, {"default/chat": log}.get, RecentLog())
    return Page(Feed(state, "a1"), load_files(), nothing, RecentRequests(lambda: None, Rates()), control)


async def ask(shown, path, lines="", *, method="GET", body="", models=(), host="127.0.0.1:8080"):
    async def handle(exchange):
        exchange.client = Principal(models=models) if models else None
        await shown(exchange)

    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{lines}{length}Connection: close\r\n\r\n{body}"
    answer = (await converse(handle, head.encode())).decode()
    return int(answer.split()[1]), answer


@pytest.mark.parametrize(
    ("path", "more", "status", "words"),
    [
        ("/page/events", {"host": "evil.example"}, 403, "host_refused"),
        ("/page/app.js", {"host": "evil.example"}, 403, "host_refused"),
        ("/page/events", {"lines": "Origin: http://127.0.0.1:9\r\n"}, 403, "origin_refused"),
        ("/page/events", {"models": ("chat",)}, 403, "model_not_allowed"),
        ("/page/requests", {}, 403, "token_required"),
        ("/page/logs?service=default/chat", {}, 403, "token_required"),
        ("/page/logs?service=default/chat", {"lines": f"X-LLMKube-Page-Token: {TOKEN}x\r\n"}, 403, "token_required"),
        ("/page/actions", {"method": "POST", "body": ACTION}, 403, "token_required"),
        ("/page/logs?service=../../etc/passwd", {"lines": WITH_TOKEN}, 404, "there is no log"),
        ("/page/logs?service=a/b/c", {"lines": WITH_TOKEN}, 404, "there is no log"),
        ("/page/logs?service=default/chat", {"lines": WITH_TOKEN}, 404, "no log yet"),
        ("/page/actions", {"lines": WITH_TOKEN, "method": "POST", "body": "[1]"}, 400, "invalid_body"),
        ("/page/actions", {"lines": WITH_TOKEN, "method": "POST", "body": ACTION[:9]}, 400, "invalid_body"),
        ("/page/actions", {"lines": WITH_TOKEN, "method": "POST", "body": ACTION.replace("stop", "rm")}, 400, "stop"),
        ("/page/actions", {"lines": WITH_TOKEN, "method": "POST", "body": ACTION.replace("chat", "x")}, 409, "no Infe"),
        ("/page/actions", {"method": "POST", "body": '{"action": "deploy", "service": "x"}'}, 403, "token_required"),
        ("/page/actions", {"method": "POST", "body": '{"action": "capture", "service": ""}'}, 403, "token_required"),
        ("/page/nothing", {}, 404, "not_found"),
        ("/page/%2e%2e/handler.py", {}, 404, "not_found"),
    ],
)
async def test_refused(path, more, status, words, tmp_path):
    """Each has its status and a reason; nothing is carried out."""
    done = []
    found, answer = await ask(page(tmp_path / "none.log", done), path, **more)
    assert (found, words in answer, done) == (status, True, []), answer


async def test_an_action_with_the_token_is_carried_out(tmp_path):
    """The answer has what was done."""
    done = []
    answer = await ask(page(done=done), "/page/actions", WITH_TOKEN, method="POST", body=ACTION)
    assert (answer[0], '{"message":"stopped"}' in answer[1], done) == (200, True, ["default/chat"])


async def test_files_need_no_key_and_nothing_else_is_public():
    """A browser that opens the address gets the page with its policy; an unchanged file is not sent again."""
    shown, public = page(), []

    async def handle(exchange):
        public.append(is_public(exchange.head))
        await shown(exchange)

    for path in ("/", "/page/app.js", "/page/events", "/page/logs"):
        await converse(
            handle, f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\nConnection: close\r\n\r\n".encode()
        )
    assert public == [True, True, False, False]
    status, answer = await ask(shown, "/", "Accept: text/html\r\n")
    assert (status, "frame-ancestors 'none'" in answer, "<nav" in answer) == (200, True, True)
    etag = answer.partition("ETag: ")[2].partition("\r\n")[0]
    status, answer = await ask(shown, "/page/index.html", f"If-None-Match: {etag}\r\n")
    assert (status, "<nav" in answer) == (304, False)


async def test_a_listener_has_so_many_viewers_and_no_more(nursery, autojump_clock):
    """One more is refused; those of another listener are not affected."""
    one, other = page(), page()
    nursery.start_soon(one.feed.run)
    for _ in range(MAX_VIEWERS):
        nursery.start_soon(partial(ask, one, "/page/events"))
    await trio.testing.wait_all_tasks_blocked()
    status, answer = await ask(one, "/page/events")
    assert (status, "too_many_pages" in answer) == (503, True)
    assert other.places.value == MAX_VIEWERS
    nursery.cancel_scope.cancel()
