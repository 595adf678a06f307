"""A router with the limits that its pod has, and the worst bodies that these admit, in a control group."""

import json
import sys

import pytest
import trio

from e2e.control_groups import open_control_group
from e2e.router_lab import open_router, serve
from llmkube.base.http.client import open_http_client
from llmkube.base.http.errors import HttpError

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")]

MIB = 1 << 20
POD_BYTES = 512 * MIB
ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: r}
spec:
  backends:
    - name: cloud
      external: {provider: openai, model: m, url: "http://127.0.0.1:PORT/v1"}
  defaultRoute: cloud
"""


def asked(content, **more):
    given = {"model": "cloud", "messages": [{"role": "user", "content": content}], **more}
    return json.dumps(given, ensure_ascii=False).encode()


TEXT = 16 * MIB - 200


def bodies():
    """Return the worst bodies, which take a second to write and 100 MiB of memory."""
    return {
        "empty objects": asked([{}] * 4_000_000),
        "objects of an unknown field": asked("x", unknown=[{"": 0}] * 1_700_000),
        "admitted objects": asked([{"type": "text", "text": f"{at:x}"} for at in range(50_000)]),
        "wide text": asked("x" * (TEXT - 4) + "\N{SLIGHTLY SMILING FACE}"),
        "escaped wide text": asked("x" * (TEXT - 12)).replace(b'"}]', b'\\ud83d\\ude42"}]'),
        "text": asked("x" * TEXT),
        "broken text": asked("x" * (TEXT - 4) + "\N{SLIGHTLY SMILING FACE}")[:-1],
    }


@pytest.mark.ci
async def test_the_worst_bodies_fit_in_the_pod(tmp_path):
    """12 at once of each kind, each held by the backend for ever: the router lives, and answers its probes."""
    worst = bodies()
    statuses = {kind: [] for kind in worst}

    held = 0

    async def hold(exchange):
        nonlocal held
        held += 1
        try:
            await trio.sleep_forever()
        finally:
            held -= 1

    async def send(client, url, kind):
        try:
            answer = await client.request("POST", f"{url}/v1/chat/completions", body=worst[kind])
            statuses[kind].append(answer.status)
        except HttpError:  # refused before its last byte
            statuses[kind].append(503)

    with open_control_group("router", POD_BYTES) as group:
        async with trio.open_nursery() as nursery:
            config = ROUTER.replace("PORT", str(await serve(nursery, hold)))
            async with open_router(tmp_path, config, prefix=group.prefix) as router:
                for kind in worst:
                    async with open_http_client() as client, trio.open_nursery() as senders:
                        for _ in range(12):
                            senders.start_soon(send, client, router.url, kind)
                        while held + len(statuses[kind]) < 12:
                            assert group.pids(), f"killed by {kind}"
                            await trio.sleep(0.05)
                        assert (await client.request("GET", f"{router.admin}/healthz")).status == 200, kind
                        senders.cancel_scope.cancel()
                    assert set(statuses[kind]) <= {400, 503}, kind
            nursery.cancel_scope.cancel()
    assert 400 in statuses["empty objects"]
    assert len(statuses["admitted objects"]) < 12
