"""A router in a network namespace, random policies and requests for it, and canaries in another namespace.

A program: `python -m router.own_network.session COUNT SEED CLASSES BUG [SECONDS]`, in a namespace of its own. Two wires
lead to the canaries: `near` to local ones, `far` to all others. It prints the canaries' bytes as JSON.
"""

import json
import logging
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import structlog
import trio

from llmkube.router.policy import decision
from router.own_network import canaries
from router.policy import oracle
from router.policy.drawn_routers import TEAMS, config_of, draw_request, draw_router
from router.policy.test_mutants import MUTANTS

TIERS: Final = {"near": "10.1.0", "far": "10.2.0"}
ANY, SENSITIVE = "any", "sensitive"


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def open_canaries(report: Path) -> Iterator[None]:
    """Run the canaries behind two wires; their report is written at the end."""
    command = ["unshare", "--net", sys.executable, canaries.__file__, str(report)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        run("ip", "link", "set", "lo", "up")
        inside = ("nsenter", "--target", str(process.pid), "--net", "ip")
        run(
            "sh", "-c", f"until [ $(readlink /proc/{process.pid}/ns/net) != $(readlink /proc/self/ns/net) ]; do :; done"
        )
        run(*inside, "link", "set", "lo", "up")
        for name, network in TIERS.items():
            run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}0", "netns", str(process.pid))
            run("ip", "link", "set", name, "addrgenmode", "none")  # else the kernel sends IPv6 packets of its own
            run("ip", "addr", "add", f"{network}.1/24", "dev", name)
            run(*inside, "link", "set", f"{name}0", "addrgenmode", "none")
            for host in range(2, 8):
                run(*inside, "addr", "add", f"{network}.{host}/24", "dev", f"{name}0")
            run(*inside, "link", "set", f"{name}0", "up")
            run("ip", "link", "set", name, "up")
        process.stdin.write(b"serve\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"serving\n"
        yield
        process.stdin.close()
        process.wait()


def address_of(router: dict[str, Any], name: str) -> str:
    """Return the address of a backend of a drawn router: local ones are near."""
    return f"{TIERS['near' if router['backends'][name]['local'] else 'far']}.{int(name[1:]) + 2}"


def placed(router: dict[str, Any], keys: str) -> Any:
    """Return the router's config, with each backend at its canary."""
    config = config_of(router)
    backends = {
        name: attrs.evolve(each, base_url=f"http://{address_of(router, name)}:{canaries.PORT}/v1", first_byte_seconds=9)
        for name, each in config.backends.items()
    }
    # without lists of teams clients need no key
    auth = attrs.evolve(config.auth, keys_folder=keys if router["teams"] else "")
    return attrs.evolve(config, backends=backends, auth=auth, first_byte_seconds=9)


def draw(dice: random.Random, classes: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw a router and two requests; with `sensitive`, each has a class that stays local."""
    while True:
        router = draw_router(dice)
        requests = [draw_request(dice, router) for _ in range(2)]
        if classes == ANY or all(oracle.classes_of(router, each) & router["sensitive"] for each in requests):
            return router, requests


def written(request: dict[str, Any], router: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body and the headers of a request."""
    head = {each: value for each, value in request["head"].items() if each != "authorization"}
    if router["teams"] and request["team"]:
        head["authorization"] = f"Bearer key-of-{request['team']}"
    elif not router["teams"]:
        head["authorization"] = "Bearer of-a-client"
    body = {"messages": [{"role": "user", "content": "hi"}], "model": "none", **request["body"]}
    if "input" in body:  # this path has no such field, so that no backend gets it
        body["messages"] = body.pop("input")
    return body | {"stream": request["pick"] < 0.2}, head | {"x-request-id": name}


async def play(
    count: int, seed: int, classes: str, folder: Path, *, seconds: float = math.inf
) -> dict[str, frozenset[str]]:
    """Send up to `count` drawn routers two requests each, as time allows; return the permitted backends."""
    from llmkube.base.http.dial import dial  # functions that a bug replaces are looked up when the router is imported
    from router.proxy.router_lab import config_of as lab_config
    from router.proxy.router_lab import local, open_lab

    keys = folder / "keys"
    keys.mkdir()
    for team in TEAMS:
        if team:
            (keys / team).write_text(f"key-of-{team}")
    dice, may_reach, kinds = random.Random(seed), {}, {}
    async with open_lab(lab_config(local("none")), connect=dial) as lab:
        until = trio.current_time() + seconds
        for number in range(count):
            if trio.current_time() > until:
                break
            router, requests = draw(dice, classes)
            lab.config, lab.stamp = placed(router, str(keys)), (2, number, 0)
            await lab.router.live.reload_if_changed()
            async with trio.open_nursery() as nursery:
                for at, request in enumerate(requests):
                    name = f"r-{number}-{at}"
                    allowed = [each for each in router["backends"] if not oracle.forbidden(router, request, each)]
                    reachable = frozenset(address_of(router, each) for each in allowed)
                    may_reach[name] = kinds.setdefault(reachable, reachable)
                    nursery.start_soon(lab.ask, *_asked(written(request, router, name)))
            lab.lines.clear()
    return may_reach


def _asked(found: tuple[dict[str, Any], dict[str, str]]) -> tuple[Any, str, dict[str, str]]:
    return found[0], "/v1/chat/completions", found[1]


def follow_redirects(patch: pytest.MonkeyPatch) -> None:
    """Replace the transport with one that follows redirects."""
    from llmkube.router.dispatch.transport import Address, Transport

    start = Transport.start

    async def following(self: Any, permit: Any, path: str, lines: bytes, body: bytes, *more: Any) -> Any:
        answer = await start(self, permit, path, lines, body, *more)
        if where := answer.headers.get("location"):
            origin = Address.of(where).origin
            head = b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (path.encode(), lines, len(body))
            return await self.plain.start(origin, "POST", head, body)
        return answer

    patch.setattr(Transport, "start", following)


def tell_health_checks(patch: pytest.MonkeyPatch) -> None:
    """Add a client's header to each health check."""
    from llmkube.router.dispatch.transport import Transport

    ask = Transport.ask

    async def telling(self: Any, permit: Any, path: str, lines: bytes) -> Any:
        return await ask(self, permit, path, lines + b"X-App: a\r\n")

    patch.setattr(Transport, "ask", telling)


def wait_for_all(patch: pytest.MonkeyPatch) -> None:
    """Make each decision contain the wait of all backends: a bug that adds one would end in a KeyError."""
    decide = decision.decide

    def decided(config: Any, facts: Any, allowed: Any, **given: Any) -> Any:
        found = decide(config, facts, allowed, **given)
        return attrs.evolve(found, first_byte_seconds=dict.fromkeys(config.backends, 9.0) | found.first_byte_seconds)

    patch.setattr(decision, "decide", decided)


BUGS: Final = {
    "redirects are followed": follow_redirects,
    "health checks carry data": tell_health_checks,
    **MUTANTS,
}


def is_health_check(head: str, address: str) -> bool:
    """Whether this is the whole head of the router's health check: a client's byte would make it another."""
    from llmkube.router.dispatch.forwarded_headers import request_lines
    from router.proxy.router_lab import local

    lines = request_lines(local("none"), "", "health", {}).decode()
    return head == f"GET /health HTTP/1.1\r\nHost: {address}:{canaries.PORT}\r\n{lines}".removesuffix("\r\n")


def main(count: int, seed: int, classes: str, bug: str, seconds: float = math.inf) -> None:
    # a traceback with all local variables of a drawn router would take minutes
    level = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=level, logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        if bug:
            BUGS[bug](patch)
            wait_for_all(patch)
        report = Path(folder, "report")
        with open_canaries(report):
            may_reach = trio.run(partial(play, count, seed, classes, Path(folder), seconds=seconds))
        found = json.loads(report.read_text())
    leaks = [
        (name, address, size)
        for name, by_address in found["seen"].items()
        for address, size in by_address.items()
        if address not in may_reach.get(name, ())
    ]
    reachable = frozenset().union(*may_reach.values())
    checks = [(head, address) for address, by_head in found["checks"].items() for head in by_head]
    leaks += [
        (head, address, len(head))
        for head, address in checks
        if address not in reachable or not is_health_check(head, address)
    ]
    summary = {"asked": len(may_reach), "reached": len(found["seen"]), "leaks": len(leaks), "examples": leaks[:9]}
    summary |= {"checks": len(checks), "stray": found["stray"], "received": found["received"]}
    sys.stdout.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], *map(float, sys.argv[5:]))
