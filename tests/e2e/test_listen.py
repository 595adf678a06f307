"""`llmkube up --listen`: what other machines can reach, with a key and without, and what a port scan finds."""

import json
import os
import re
import signal
import stat
import subprocess
import sys

import psutil
import pytest
import trio

from e2e.terminal import open_terminal
from e2e.test_keys import listeners
from e2e.up_process import ANSWER, DEMO, FREE_PORTS, environment, open_up, processes_in, run_up
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, netloc
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ASK = json.dumps({"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": "What is LLMKube?"}]})
CLOSED = ("/", "/v1/models", "/v1/models/demo", "/metrics", "/slots", "/healthz", "/health/../v1/models", "/api")


def network_url(up):
    """Return the gateway's URL for other machines, as the program prints it."""
    return re.search(r"^network +(\S+)$", up.err, re.MULTILINE)[1]


def key_file(up):
    """Return the path of the key's file, as the program prints it."""
    return re.search(r"^its key +(\S+)$", up.err, re.MULTILINE)[1]


async def ask(url, method="POST", path="/v1/chat/completions", **headers):
    async with open_http_client() as http:
        body = ASK.encode() if method == "POST" else b""
        lines = Headers.of({name.replace("_", "-"): value for name, value in headers.items()})
        return await http.request(method, f"{url}{path}", headers=lines, body=body)


def outside(up):
    """Return the addresses other than loopback at which the program and its children accept connections."""
    tree = [up.process.pid, *(child.pid for child in psutil.Process(up.process.pid).children(recursive=True))]
    return {tuple(where) for where in listeners(tree) if where.ip not in {"127.0.0.1", "::1"}}


async def test_another_machine_needs_the_key_and_a_port_scan_finds_nothing_open(tmp_path, address):
    """Without a key 401 for all but /health, with it the answer; 403 for a foreign page; loopback needs none."""
    state = tmp_path / "state"
    args = ("--state-dir", str(state), *FREE_PORTS, "--listen", netloc((address, 0)))
    async with open_up(tmp_path, *args, "-f", str(DEMO)) as up:
        _, gateway, probes = await up.urls()
        await up.wait_for("out", r"default/demo: Ready\n")
        url = network_url(up)
        path = state / "listen-key"
        key = path.read_text()
        assert key_file(up) == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

        assert outside(up) == {(address, int(url.rpartition(":")[2]))}
        for closed in CLOSED:
            for method in ("GET", "POST", "OPTIONS"):
                assert (await ask(url, method, closed)).status == 401, (method, closed)
        assert (await ask(url)).headers.get("www-authenticate") == "Bearer"
        assert json.loads((await ask(url)).body)["error"]["code"] == "invalid_api_key"
        assert isinstance(json.loads((await ask(url, "GET", "/api/tags")).body)["error"], str)
        assert (await ask(url, authorization=f"Bearer {key[:-1]}")).status == 401
        assert (await ask(url, x_api_key="wrong")).status == 401
        assert json.loads((await ask(url, "GET", "/health")).body) == {"status": "ok"}
        assert (await ask(url, "POST", "/health")).status == 401
        for shown in ({"authorization": f"Bearer {key}"}, {"x_api_key": key}):
            answer = await ask(url, **shown)
            assert json.loads(answer.body)["choices"][0]["message"]["content"] == ANSWER
            assert (await ask(url, origin="https://evil.example", **shown)).status == 403
        assert (await ask(gateway)).status == 200
        for other in (gateway, gateway.replace("127.0.0.1", "[::1]")):
            assert (await ask(other, "GET", "/health")).status == 200
            assert isinstance(json.loads((await ask(other, "GET", "/api/none")).body)["error"], str)

        everything = " ".join(" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
        everything += up.out + up.err + "".join(log.read_text() for log in state.rglob("*.log*"))
        everything += (await ask(probes, "GET", "/metrics")).body.decode()
        assert key not in everything
        up.process.send_signal(signal.SIGTERM)
        assert await up.process.wait() == 0, up.err
    assert not processes_in(state)
    assert key not in up.out + up.err


async def test_a_fresh_up_listens_on_the_loopback_address_alone(tmp_path, address):
    """Without --listen no port of the program or its engines is reachable from elsewhere."""
    async with open_up(tmp_path, "--demo") as up:
        await up.wait_for("out", r"default/demo: Ready\n")
        assert len(processes_in(tmp_path)) > 0
        assert outside(up) == set()
        assert "network" not in up.err


async def test_insecure_lan_accepts_every_request_and_logs_it(tmp_path, address):
    """No key is generated or required, and foreign pages are still refused."""
    async with open_up(tmp_path, "--demo", "--listen", address, "--insecure-lan") as up:
        await up.wait_for("out", r"default/demo: Ready\n")
        url = network_url(up)
        assert json.loads((await ask(url)).body)["choices"][0]["message"]["content"] == ANSWER
        assert (await ask(url, origin="https://evil.example")).status == 403
        await up.wait_for("err", "gateway open to every request from any address")
        assert "its key" not in up.err
        assert not list(tmp_path.rglob("listen-key"))


async def test_ask_works_with_listen(tmp_path, address):
    code, out, err = await run_up(tmp_path, "--demo", "--ask", "What is LLMKube?", "--listen", address)
    assert code == 0, err
    assert ANSWER in out


async def test_the_key_is_shown_once_on_a_terminal(tmp_path, address):
    """The start that generates it shows it; later ones name its file and use the same key."""
    args = ("--state-dir", str(tmp_path / "state"), *FREE_PORTS, "--listen", netloc((address, 0)))
    seen = [await on_a_terminal(tmp_path, *args) for _ in range(2)]
    key = (tmp_path / "state" / "listen-key").read_text()
    assert [key in text for text in seen] == [True, False]
    assert "The key for other machines, shown this once:" in seen[0]
    for text in seen:
        assert str(tmp_path / "state" / "listen-key") in text


async def on_a_terminal(folder, *args):
    """Return what `llmkube up ARGS` shows on a terminal; stop it once it shows how."""
    command = [sys.executable, "-m", "llmkube", "up", *args]
    async with open_terminal() as (follower, drawn):
        streams = {"stdin": subprocess.DEVNULL, "stdout": follower, "stderr": follower}
        env = environment(folder) | {"TERM": "dumb", "COLUMNS": "300"}
        process = await trio.lowlevel.open_process(command, env=env, **streams)
        os.close(follower)
        await until(lambda: b"Ctrl-C, or" in drawn or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0, drawn.decode()
    return drawn.decode()


@pytest.mark.parametrize("given", ["0.0.0.0", "127.0.0.1", "mac.local", "203.0.113.9:8080"])
async def test_an_address_that_is_not_this_machines_is_refused_before_anything_starts(tmp_path, address, given):
    """One sentence names the flag, the address and the possible addresses."""
    code, out, err = await run_up(tmp_path, "--demo", "--listen", given)
    assert code == 1
    assert re.search(rf"^Error: --listen: .*{re.escape(given.partition(':')[0])}.*; give one of .*{address}", err)
    assert "Traceback" not in out + err
    assert not list(tmp_path.glob("llmkube-*"))


async def test_own_keys_are_taken_from_a_file(tmp_path, address):
    """Each of its lines is a key, and no key is generated."""
    file = tmp_path / "keys"
    file.write_text("first-of-mine\nsecond-of-mine\n")
    args = ("--state-dir", str(tmp_path / "state"), *FREE_PORTS, "--listen", netloc((address, 0)))
    async with open_up(tmp_path, *args, "--listen-key-file", str(file)) as up:
        await up.urls()
        await up.wait_for("out", "Ctrl-C, or")
        url = network_url(up)
        assert key_file(up) == str(file)
        for key in ("first-of-mine", "second-of-mine"):
            assert (await ask(url, "GET", "/v1/models", x_api_key=key)).status == 200
        assert (await ask(url, "GET", "/v1/models", x_api_key="third")).status == 401
    assert not (tmp_path / "state" / "listen-key").exists()
    assert "of-mine" not in up.out + up.err


AWAY = "192.0.2.77"
"""An address in the test's own network."""

OWN_NETWORK = ("unshare", "-n", "sh", "-c", f'ip link set lo up && ip addr add {AWAY}/32 dev lo && exec "$@"', "sh")


async def test_a_lost_address_is_served_again_once_restored(tmp_path):
    """Loopback keeps working, each change is logged once, and other machines then use the same key again."""
    tools = [*OWN_NETWORK, "sh", "-c", "command -v nsenter && command -v ss && command -v curl"]
    if (await trio.run_process(tools, check=False, capture_stdout=True, capture_stderr=True)).returncode:
        pytest.skip("this test needs a network namespace of its own, so root, unshare and nsenter; ip, ss and curl")
    args = ("--state-dir", str(tmp_path / "state"), *FREE_PORTS, "--listen", AWAY)
    async with open_up(tmp_path, *args, prefix=OWN_NETWORK) as up:
        _, gateway, _ = await up.urls()
        await up.wait_for("out", "Ctrl-C, or")
        inside = ("nsenter", "--target", str(up.process.pid), "--net")

        async def run(*words):
            return (await trio.run_process([*inside, *words], check=False, capture_stdout=True)).stdout.decode()

        async def status(url, key=""):
            return await run("curl", "-s", "-m5", "-o/dev/null", "-w%{http_code}", "-H", f"X-Api-Key: {key}", url)

        url, key = network_url(up), (tmp_path / "state" / "listen-key").read_text()
        assert [await status(f"{url}/v1/models", each) for each in (key, "")] == ["200", "401"]
        await run("ip", "addr", "del", f"{AWAY}/32", "dev", "lo")
        await up.wait_for("err", "address lost, gateway unreachable for other machines")
        assert [await status(f"{each}/health") for each in (url, gateway)] == ["000", "200"]
        assert "LISTEN" not in await run("ss", "-tlnH", "src", AWAY)
        await run("ip", "addr", "add", f"{AWAY}/32", "dev", "lo")
        await up.wait_for("err", "address restored, gateway reachable for other machines")
        assert [await status(f"{url}/v1/models", each) for each in (key, "")] == ["200", "401"]
        assert up.err.count("address lost") == up.err.count("address restored") == 1
        up.process.send_signal(signal.SIGTERM)
        assert await up.process.wait() == 0, up.err
