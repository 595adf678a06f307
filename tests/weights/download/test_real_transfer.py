"""The same with real sockets, real TLS, real threads and a real kill."""

import contextlib
import hashlib
import json
import random
import signal
import ssl
import subprocess
import sys
from functools import partial

import pytest
import trio

from base.http.certificates import make_pair
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.downloader import open_downloader
from llmkube.weights.download.fetch import fetch
from llmkube.weights.download.guarded_transport import open_transport_with
from llmkube.weights.download.retry import DownloadLimits
from llmkube.weights.errors import BlockedAddressError, FetchError
from llmkube.weights.source import parse_source
from llmkube.weights.store.blobs import open_store
from waiting import until
from weights.hostile import NOW, Request, Wire, gguf

DATA = gguf(20_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
MINE = AddressPolicy(from_operator=True)
HURRIED = DownloadLimits(tries=1)


async def handle(stream, script, requests):
    async with stream:
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            piece = await stream.receive_some()
            if not piece:
                return
            received += piece
        request = Request.read(received)
        requests.append(request)
        with contextlib.suppress(trio.BrokenResourceError):
            await script(Wire(stream), request)


async def honest(wire, request):
    await wire.file(request, DATA)


async def slow(wire, request):
    start = request.start or 0
    await wire.file(request, DATA, cut=start)
    for at in range(start, len(DATA), 400_000):
        await wire.send(DATA[at : at + 400_000])
        await trio.sleep(0.05)


def open_real(tmp_path, **kwargs):
    return open_downloader(
        open_store(tmp_path / "store"),
        limiter=trio.CapacityLimiter(4),
        utcnow=lambda: NOW,
        rng=random.Random(1),
        limits=HURRIED,
        **kwargs,
    )


async def test_over_real_sockets_and_threads(tmp_path, nursery):
    """A file comes bit-exact over loopback through `fetch`, and the default policy refuses the same source."""
    requests = []
    [listener] = await nursery.start(
        partial(trio.serve_tcp, partial(handle, script=honest, requests=requests), 0, host="127.0.0.1")
    )
    port = listener.socket.getsockname()[1]
    source = parse_source(f"http://127.0.0.1:{port}/model.gguf")
    limiter = trio.CapacityLimiter(4)
    with trio.fail_after(60):
        async with open_real(tmp_path) as downloader:
            store = downloader._store
            get = partial(fetch, source, store, sha256=SHA256, progress=lambda _: None, limiter=limiter)
            with pytest.raises(BlockedAddressError, match="loopback"):
                await get(download=partial(downloader.fetch, policy=AddressPolicy()))
            kept = await get(download=partial(downloader.fetch, policy=MINE))
    assert kept.path.read_bytes() == DATA
    assert len(requests) == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    path = tmp_path_factory.mktemp("tls") / "pair.pem"
    make_pair(path, "files.example", is_authority=True)
    return path


@pytest.mark.parametrize(
    ("host", "trusted"),
    [("files.example", True), ("other.example", True), ("files.example", False)],
)
async def test_tls_goes_by_name_and_the_dial_by_address(tmp_path, nursery, certificate, host, trusted):
    """SNI, certificate and Host are the name's, the connection is the judged address's; a wrong one is refused."""
    names = []
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    server.sni_callback = lambda _, name, __: names.append(name)
    requests = []

    async def refuse_quietly(stream):
        with contextlib.suppress(trio.BrokenResourceError):
            await handle(stream, honest, requests)

    [listener] = await nursery.start(
        partial(trio.serve_ssl_over_tcp, refuse_quietly, 0, server, host="127.0.0.1", https_compatible=True)
    )
    port = listener.transport_listener.socket.getsockname()[1]
    dialled = []

    async def resolve(name, port):
        await trio.lowlevel.checkpoint()
        return ["93.184.216.34"]

    async def dial(address, _):
        dialled.append(address)
        return await trio.open_tcp_stream("127.0.0.1", port)

    client = ssl.create_default_context(cafile=str(certificate) if trusted else None)
    transport = open_transport_with(resolve=resolve, dial=dial, ssl_context=client)
    source = parse_source(f"https://{host}/model.gguf")
    with trio.fail_after(60):
        async with open_real(tmp_path, open_transport=transport) as downloader:
            get = partial(downloader.fetch, source, sha256=SHA256, policy=AddressPolicy(), progress=lambda _: None)
            if host == "files.example" and trusted:
                assert (await get()).path.read_bytes() == DATA
                assert requests[0].host == "files.example"
            else:
                with pytest.raises(FetchError, match=f"TLS handshake with {host} failed"):
                    await get()
                assert requests == []
    assert names == [host]
    assert dialled == ["93.184.216.34"]


CHILD = """
import datetime, random, sys, trio
from pathlib import Path
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download.downloader import open_downloader
from llmkube.weights.download.retry import DownloadLimits
from llmkube.weights.source import parse_source
from llmkube.weights.store.blobs import open_store

async def main():
    async with open_downloader(
        open_store(Path(sys.argv[1])),
        limiter=trio.CapacityLimiter(2),
        utcnow=lambda: datetime.datetime.now(datetime.UTC),
        rng=random.Random(1),
        limits=DownloadLimits(checkpoint_seconds=0.1),
    ) as downloader:
        policy = AddressPolicy(from_operator=True)
        await downloader.fetch(parse_source(sys.argv[2]), sha256=None, policy=policy, progress=lambda _: None)

trio.run(main)
"""


@pytest.mark.ci
async def test_after_a_kill_the_download_resumes(tmp_path, nursery):
    """A process that is killed in the middle leaves nothing to be seen, and the next one asks only for the rest."""
    requests = []
    [listener] = await nursery.start(
        partial(trio.serve_tcp, partial(handle, script=slow, requests=requests), 0, host="127.0.0.1")
    )
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/model.gguf"
    store = open_store(tmp_path / "store")
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", CHILD, str(store.root), url], stderr=subprocess.DEVNULL
        )
        await until(lambda: synced(store))
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert list(store.blobs.iterdir()) == []
        assert list(store.index.iterdir()) == []
        async with open_real(tmp_path) as downloader:
            kept = await downloader.fetch(parse_source(url), sha256=SHA256, policy=MINE, progress=lambda _: None)
    assert kept.path.read_bytes() == DATA
    assert requests[1].start > 0
    assert list(store.partial.iterdir()) == []


def synced(store):
    notes = store.partial.glob("[!.]*.json")
    return any(json.loads(note.read_text())["syncedBytes"] for note in notes)
