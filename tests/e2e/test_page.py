"""The page of a real `up` with a real engine, in a real browser."""

import json
import os
import re
import stat
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from e2e.client_packages import find_browser_driver
from e2e.router_lab import run_clients, serve
from e2e.separate_programs import open_cluster
from e2e.up_process import open_machine, open_program
from llmkube.base.http.message import Headers, Response
from security.chromium import INSTALL_HINT, find_chromium

pytestmark = pytest.mark.e2e

SCRIPT = Path(__file__).with_name("page_browser.py")


@pytest.fixture(scope="module")
def browser():
    """The command of a Chromium, and the folder of its driver."""
    found = find_chromium()
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(INSTALL_HINT)
    return found, find_browser_driver()


async def drive(tmp_path, browser, run, *parts, **more):
    """Deploy the demo and run parts of the script against the page."""
    code, _, err = await run("deploy", "demo", "--source", "builtin://demo")
    assert code == 0, err
    code, address, err = await run("page", "--print")
    assert code == 0, err
    url, _, token = address.strip().partition("/#token=")
    shots = os.environ.get("LLMKUBE_PAGE_SHOTS", "")
    return url, await script(tmp_path / "home", browser, *parts, url=url, token=token, shots=shots, **more)


async def script(folder, browser, *parts, **task):
    """Run parts of the script in the browser; return what it has found."""
    task |= {"chromium": browser[0], "parts": parts, "question": "What is LLMKube?"}
    return await run_clients(folder, browser[1], str(SCRIPT), json.dumps(task))


@asynccontextmanager
async def open_front_door(cluster, *args, **files):
    """Run `llmkube gateway` on a cluster, with these files of keys; yield its address."""
    folder = cluster.folder / "door"
    for team, key in files.items():
        (folder / "keys" / "teams").mkdir(parents=True, exist_ok=True)
        (folder / "keys" / "teams" / team).write_text(key)
    args = (*args, "--port", "0", "--admin-port", "0", "--state-dir", str(folder), "--keys-dir", str(folder / "keys"))
    async with open_program(folder, "gateway", *args, kubeconfig=cluster.kubeconfig) as door:
        yield (await door.wait_for("err", r'"api":"(\S+?)"'))[1]


@pytest.mark.ci
async def test_each_view_fits_and_is_accessible(tmp_path, browser):
    """From 360 pixels to 4K, light and dark: no overflow, no overlap, no finding of axe, no other server asked."""
    async with open_machine(tmp_path, "--host-name", "laptop") as (_, run):
        for name, source in (("helper", "builtin://demo"), ("lost", "/models/lost.gguf")):
            code, _, err = await run("deploy", name, "--source", source, "--no-wait", "--priority", "high")
            assert code == 0, err
        url, found = await drive(tmp_path, browser, run, "see_views")
    assert found["problems"] == {}
    assert found["console"] == []
    assert {each[: len(url)] for each in found["urls"]} == {url}


@pytest.mark.ci
async def test_the_owner_chats_and_changes_models_and_others_only_look(tmp_path, browser):
    """With the token actions work by keyboard; without it they are refused, and logs are closed."""
    async with open_machine(tmp_path) as (_, run):
        url, found = await drive(tmp_path, browser, run, "use")
        opener = tmp_path / "state" / "page.html"
        assert stat.S_IMODE(opener.stat().st_mode) == 0o600
    assert found["address"] == f"{url}/#memory"  # the token has left it
    assert re.search(r"\w.* \+ \d+ answer tokens in ", found["answer"], re.DOTALL)  # sampled: not always the same words
    assert found["states"] == ["idle", "ready", "stopped", "ready"]
    assert "llmkube page" in found["without token"]
    assert "llmkube page" in found["logs without token"]


@pytest.mark.ci
async def test_the_owner_deploys_and_sees_bodies(tmp_path, browser):
    """The fit or the command's error is shown first; bodies are kept on demand, without keys, until that is ended."""
    async with open_machine(tmp_path) as (_, run):
        _, found = await drive(tmp_path, browser, run, "deploy")
        code, listed, _ = await run("list")
    bad, missing, fits = found["fits"]
    assert bad == '"Bad Name" is not a valid name; use lower-case letters, digits, - and ., such as bad-name'
    assert missing == "there is no file /missing.gguf"
    assert fits.startswith("Fits now: it needs ")
    assert (code, listed.count("Ready")) == (0, 2)
    asked, answered = found["bodies"]
    assert ("My key is [redacted]. What is LLMKube?" in asked, answered.startswith("data: {")) == (True, True)
    assert "longer kept" in found["dropped"]
    assert re.findall(r"carried out +action=(\w+)", found["log"]) == ["deploy", "capture", "capture"]


@pytest.mark.ci
async def test_other_pages_and_hostile_texts_get_nowhere(tmp_path, browser):
    """A foreign page, a frame and a rebound name read and change nothing; markup in any text stays text."""

    async def handle(exchange):
        await exchange.respond(Response(200, Headers.of({"Content-Type": "text/html"}), b"<p>evil"))

    async with open_machine(tmp_path) as (up, run), trio.open_nursery() as nursery:
        port = await serve(nursery, handle)
        _, gateway, _ = await up.urls()
        evil = partial("http://evil.example:{}/".format)
        addresses = {"foreign": evil(port), "rebound": evil(gateway.rpartition(":")[2])}
        _, found = await drive(tmp_path, browser, run, "attack", "show_hostile_text", **addresses)
        code, listed, _ = await run("list")
        assert (code, "Ready" in listed, "evil" in listed) == (0, True, False)
        nursery.cancel_scope.cancel()
    assert found["foreign"] == [
        "blocked",
        "",
        "blocked",
        "blocked",
        "blocked",
        "",
        "",
    ]  # "": an opaque answer, which it cannot read
    assert (found["frame"], found["rebound"]) == (False, 403)
    assert (found["elements"], found["problems"]) == (0, {})
    assert found["title"] == "Logs · LLMKube"


SHARED = {"views": ["models", "chat"], "token": "", "shots": ""}
"""Of a page that only shows: its views; it has no owner."""


@pytest.mark.ci
async def test_a_front_door_of_a_cluster_shows_models_and_chats(tmp_path, browser, address):
    """With a client's key: models and a chat, at each width; without one the page says what it needs."""
    key = "key-of-red-0123456789"
    async with open_cluster(tmp_path) as cluster, cluster.open_agent(address):
        await cluster.apply_demo()
        await cluster.wait_ready()
        async with open_front_door(cluster, red=key) as url:
            found = await script(tmp_path, browser, "look", "see_views", url=url, key=key, **SHARED)
    assert found["views"] == ["Models", "Chat"]
    assert ("Ready engines\n1\n" in found["models"], found["buttons"]) == (True, 0)
    assert re.search(r"\w.* \+ \d+ answer tokens in ", found["answer"], re.DOTALL)
    assert found["without key"] == "A key is required; reload the page to enter one"
    assert (found["problems"], [each for each in found["console"] if "401" not in each]) == ({}, [])
    assert {each[: len(url)] for each in found["urls"]} == {url}


@pytest.mark.ci
async def test_a_front_door_of_a_cluster_gives_other_pages_nothing(tmp_path, browser):
    """Without keys, it refuses foreign pages, frames and rebound names as well; markup in names stays text."""

    async def handle(exchange):
        await exchange.respond(Response(200, Headers.of({"Content-Type": "text/html"}), b"<p>evil"))

    async with open_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        evil = partial("http://evil.example:{}/".format)
        foreign = evil(await serve(nursery, handle))
        async with open_front_door(cluster, "--allow-anonymous") as url:
            addresses = {"url": url, "foreign": foreign, "rebound": evil(url.rpartition(":")[2])}
            found = await script(tmp_path, browser, "attack", "show_hostile_text", **addresses, **SHARED)
        nursery.cancel_scope.cancel()
    assert found["foreign"] == ["blocked", "", *3 * ["blocked"], "", ""]
    assert (found["frame"], found["rebound"], found["elements"], found["problems"]) == (False, 403, 0, {})
