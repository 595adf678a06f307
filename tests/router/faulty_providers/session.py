"""Sixteen faults of providers over real sockets: a real `llmkube router`, and two scripted providers for each request.

The first provider of each request has the fault, the second one is healthy. The table of
`tests/router/proxy/test_faults.py` defines each fault and the expected result; that test plays it in memory as well.
"""

import json
import re
import socket
import struct
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from e2e.up_process import open_program
from router.proxy import router_lab as rl
from router.proxy.test_faults import CAUSES, FAULTS, HALF

LIMIT_SECONDS, DRIP_SECONDS = 3, 0.5
PLAIN, STREAM, AFTER = "plain", "streamed", "after the first byte"
KINDS: Final = (PLAIN, STREAM, AFTER)
WELL: Final[Mapping[str, str]] = {PLAIN: "well", STREAM: "well-streamed", AFTER: "well-streamed"}
"""The second providers, which all requests of a kind share."""

SLUGS: Final[Mapping[str, str]] = {PLAIN: "plain", STREAM: "streamed", AFTER: "after"}


async def drip(connection: Any, head: bytes, each: bytes) -> None:
    """Send one byte after another, forever."""
    await connection.send_all(head)
    while True:
        await trio.sleep(DRIP_SECONDS)
        await connection.send_all(each)


def resetting(data: bytes) -> Any:
    """Return a script: these bytes, then a reset of the connection."""

    async def script(connection: Any) -> None:
        await connection.send_all(data)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return script


DRIPS: Final = {
    PLAIN: partial(
        drip, head=b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n{", each=b" "
    ),
    STREAM: partial(drip, head=rl.SSE, each=rl.chunk(b"d")),
    AFTER: rl.saying(HALF, then=partial(drip, head=b"", each=rl.chunk(b"d"))),
}
RESETS: Final = {PLAIN: resetting(rl.answer()[:20]), STREAM: resetting(rl.SSE[:30]), AFTER: resetting(HALF)}
REAL: Final = {"slow drip": DRIPS, "reset": RESETS}
"""Scripts that differ between sockets and memory: a drip faster than a test's timeout, and a real reset."""


@attrs.frozen
class Case:
    """One request to a provider with a fault."""

    fault: str
    kind: str

    @property
    def slug(self) -> str:
        """The name of its model, rule and first backend."""
        return f"{self.fault.lower().replace(' ', '-')}-{SLUGS[self.kind]}"

    @property
    def script(self) -> Any:
        """Script of the first provider; None without a connection."""
        fault = FAULTS[self.fault]
        return REAL.get(self.fault, {PLAIN: fault.plain, STREAM: fault.streamed, AFTER: fault.after})[self.kind]

    @property
    def exists(self) -> bool:
        """Return whether this fault is possible before or after the first byte."""
        return self.kind != AFTER or self.script is not None


CASES: Final = [case for fault in FAULTS for case in (Case(fault, kind) for kind in KINDS) if case.exists]


def as_provider_wrote(body: bytes, case: Case) -> bytes:
    """Return a stream with the provider's name of the model and the provider's spaces; a whole answer as it is."""
    blocks = body.split(b"\n\n")
    for at, block in enumerate(blocks):
        if block.startswith(b'data: {"') and case.slug.encode() in block:
            blocks[at] = b"data: " + json.dumps(json.loads(block[6:]) | {"model": "m"}).encode()
    return b"\n\n".join(blocks).replace(b'"model":"%b"' % case.slug.encode(), b'"model":"m"')


def judge(case: Case, got: tuple[int, bytes, bool], audit: Mapping[str, Any], seconds: float, second_asked: int) -> str:
    """Return a description of what is wrong, or ""."""
    fault, (status, body, clean) = FAULTS[case.fault], got
    body = as_provider_wrote(rl.without_times(body), case)
    if seconds > LIMIT_SECONDS + 12:
        return f"took {seconds:.0f} s"
    if case.kind == AFTER:
        events = body.strip().split(b"\n\n")
        if b"[DONE]" in body:
            return f"presented as complete: {body!r}"
        last = json.loads(events[-1].removeprefix(b"data: "))
        if status != 200 or clean or "error" not in last or events[0] != rl.piece("one").strip():
            return f"{status} {body!r}, clean end {clean}"
        if second_asked or (fault.ends and last["error"]["code"] != f"stream_{fault.ends}"):
            return f"{last}, the second was asked {second_asked} times"
        return "" if audit["outcome"] == f"stream_{fault.ends or 'backend_error'}" else f"audited as {audit['outcome']}"
    if not fault.cause:
        code = json.loads(body)["error"]["code"]
        wanted = (fault.status, fault.code, 0, False)
        return "" if (status, code, second_asked, b"sk-secret" in body) == wanted else f"{status} {body!r}"
    causes = {CAUSES.get((case.fault, case.kind), fault.cause)}
    if case.fault == "DNS":
        causes.add("timeout")  # a resolver that does not answer
    if audit["attempts"][0]["result"] not in causes:
        return f"the first attempt was {audit['attempts'][0]['result']}"
    good = json.loads(body) == rl.ANSWER if case.kind == PLAIN else (body, clean) == (rl.WHOLE_STREAM, True)
    return "" if (status, good, second_asked) == (200, True, 1) else f"{status} {body!r}, asked {second_asked} times"


def written_router(ports: Mapping[str, int], audit: Path) -> dict[str, Any]:
    """Return a router with a rule for each request, by its model."""

    def backend(name: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{ports[name]}/v1" if name in ports else "https://no-such-name.invalid/v1"
        external = {"provider": "openai", "model": "gpt", "url": url}
        return {"name": name, "external": external, "tier": "cloud"}

    rules = [
        {
            "name": case.slug,
            "match": {"models": [case.slug]},
            "route": {"backends": [case.slug, WELL[case.kind]]},
            "timeout": f"{LIMIT_SECONDS}s",
        }
        for case in CASES
    ]
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "ModelRouter",
        "metadata": {"name": "faults", "namespace": "default"},
        "spec": {
            "backends": [backend(name) for name in (*(case.slug for case in CASES), *dict.fromkeys(WELL.values()))],
            "rules": rules,
            "policy": {"auditLog": {"sink": "file", "filePath": str(audit)}},
        },
    }


async def play(folder: Path) -> dict[Case, str]:
    """Send all requests at once; return for each what is wrong, or ""."""
    players: dict[str, rl.Player] = {}
    scripts = {case.slug: case.script for case in CASES}
    scripts |= {WELL[PLAIN]: rl.answer(), WELL[STREAM]: rl.stream(rl.WHOLE_STREAM)}
    for name, script in scripts.items():
        if script is not None:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            players[name] = rl.Player((script,), listener=listener)
    ports = {name: player.listener.socket.getsockname()[1] for name, player in players.items()}
    manifest, audit = folder / "router.json", folder / "audit.log"
    manifest.write_text(json.dumps(written_router(ports, audit)))
    args = ("router", "-f", str(manifest), "--port", "0", "--admin-port", "0", "--state-dir", str(folder / "state"))
    got: dict[Case, tuple[tuple[int, bytes, bool], float]] = {}
    async with AsyncExitStack() as stack:
        for player in players.values():
            await stack.enter_async_context(player.listener)
        router = await stack.enter_async_context(open_program(folder, *args))
        nursery = await stack.enter_async_context(trio.open_nursery())
        for player in players.values():
            await nursery.start(player.run)
        url = (await router.wait_for("err", r"OpenAI-compatible API on (\S+)/v1\n"))[1]
        port = int(url.rpartition(":")[2])

        async def ask(case: Case) -> None:
            lab = rl.Lab(None, {}, None, [])
            lab.front = Front(port)
            began = trio.current_time()
            response = await lab.read(
                (rl.ASKED if case.kind == PLAIN else rl.STREAMED) | {"model": case.slug},
                headers={"X-Request-Id": case.slug},
            )
            got[case] = response, trio.current_time() - began

        async with trio.open_nursery() as clients:
            for case in CASES:
                clients.start_soon(ask, case)
        router.process.terminate()
        await router.process.wait()
        nursery.cancel_scope.cancel()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    audited = {line["model"]: line for line in lines if line["kind"] == "decision"}
    fell_over = Counter(
        named[1]
        for kind in (PLAIN, STREAM)
        for head in players[WELL[kind]].heads
        if (named := re.search(r"X-Request-Id: (\S+)", head))
    )
    return {
        case: judge(case, response, audited[case.slug], seconds, fell_over[case.slug])
        for case, (response, seconds) in got.items()
    }


@attrs.frozen
class Front:
    """The router's port, for a lab's requests."""

    port: int

    async def connect(self, host: str, port: int) -> trio.SocketStream:
        """Open a connection."""
        return await trio.open_tcp_stream("127.0.0.1", self.port)
