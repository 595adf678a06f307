"""Read the facts of a remote GGUF file from its header, in at most three Range requests.

The requests are made as for downloads: the same redirects, the same check of every address, credentials only for their
origin. Nothing is written to the disk.
"""

import datetime
import math
import random
from collections.abc import Callable
from typing import Final

import attrs

from llmkube.base.http.egress import DIRECTLY, Egress
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download import hugging_face
from llmkube.weights.download.buckets import BucketAccess
from llmkube.weights.download.guarded_transport import OpenTransport, open_transport_with
from llmkube.weights.download.progress import Meter
from llmkube.weights.download.redirects import FileRequest, FileResponse, as_fetch_errors, open_response
from llmkube.weights.download.resolver import DownloadJob, Resolver
from llmkube.weights.download.retry import DownloadLimits, Network
from llmkube.weights.errors import FetchError, NotGGUFError, RangeError
from llmkube.weights.formats.gguf import facts_of
from llmkube.weights.formats.gguf_reader import HeaderReader
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.http_responses import RangeRequest, ReadBody, interpret, interpret_part, range_total
from llmkube.weights.source import BucketFile, HubRepository, RemoteFile, WebFile

REQUEST_BYTES: Final = (1 << 20, 7 << 20, 24 << 20)
"""The size of each request: headers of small models end within the first, those with 150,000 tokens within the second,
the largest known ones within the third."""

MAX_REMOTE_BYTES: Final = sum(REQUEST_BYTES)
"""A longer header is refused, even if a server sends the whole file instead of a part."""


async def read_remote_header(
    source: RemoteFile,
    *,
    policy: AddressPolicy,
    utcnow: Callable[[], datetime.datetime],
    token: str | None = None,
    access: BucketAccess | None = None,
    endpoint: str = hugging_face.ENDPOINT,
    open_transport: OpenTransport | None = None,
    egress: Egress = DIRECTLY,
) -> GGUFFacts:
    """Return the facts of a remote file, in at most three requests besides redirects; nothing is stored.

    From a server that does not support ranges, only the header is read. For a split model, the header is the first
    part's; a repository is listed first (one more request) to choose its model. There is one attempt, and no deadline
    except the caller's.

    Args:
        source: The parsed `http://`, `https://`, `hf://` or `s3://` source.
        policy: The allowed addresses: `AddressPolicy(from_operator=True)` for a source from the command line.
        utcnow: The wall clock, for pauses that a server requests by date.
        token: Only for the hub.
        access: For an object in a bucket; without it, the bucket must be public.
        endpoint: The address of the hub or of a mirror.
        open_transport: Opens the transport of requests; None for real sockets, with every address checked.
        egress: Proxies and additional certificates of real sockets.

    Raises:
        NotGGUFError: No engine could load the file, or its header is longer than `MAX_REMOTE_BYTES`.
        WeightsError: The source is invalid or refused, or access is denied; see `weights.errors`.
        FetchError: The network or the server failed; the same call may succeed later.
    """
    limits = DownloadLimits(head_seconds=math.inf, tries=1)
    network = Network(open_transport or open_transport_with(egress=egress), utcnow, random.SystemRandom(), limits)
    job = DownloadJob(source, None, token, policy, access or BucketAccess())
    resolver = Resolver(network, hugging_face.parse_endpoint(endpoint), job, Meter(lambda _: None, utcnow))
    if isinstance(source, WebFile):
        return await _read(resolver.web_file(source, source.url), network)
    if isinstance(source, BucketFile):
        return await _read(resolver.bucket_file(source, source.path), network)
    if isinstance(source, HubRepository):
        listing = await resolver.listing(source.name, source.revision)
        file, revision = hugging_face.choose(source, listing).file, listing.commit or source.revision
    else:
        file, revision = source, source.revision
    pinned = attrs.evolve(file, revision=revision)
    request = resolver.hub_file(pinned, hugging_face.HubEntry(file.path))
    return await _read(attrs.evolve(request, shown=file.redacted), network)


async def _read(request: FileRequest, network: Network) -> GGUFFacts:
    reader: HeaderReader | None = None
    ranged = request.ranged()
    for length in REQUEST_BYTES:
        if reader is not None and reader.next_range is not None:
            ranged = attrs.evolve(ranged, offset=reader.next_range.offset)
        end = ranged.offset + length
        headers = {"Range": f"bytes={ranged.offset}-{end - 1}"}
        async with open_response(network.open_transport(request.policy), request, headers) as response:
            verdict = _interpret(ranged, response, network.utcnow())
            total = response.linked_size if verdict.total_bytes is None else verdict.total_bytes
            if reader is None or verdict.offset == 0:
                reader = HeaderReader(request.shown, total, limit_bytes=MAX_REMOTE_BYTES)
            ranged = attrs.evolve(ranged, validator=verdict.validator, total_bytes=total)
            with as_fetch_errors(request.url):
                await _feed_body(response.body, verdict.offset, reader, end if response.status == 206 else None)
        if reader.next_range is None:
            return facts_of(reader)
    raise RangeError(f"{request.shown}: the server sends parts that are shorter than requested")


async def _feed_body(body: StreamedResponse, position: int, reader: HeaderReader, end: int | None) -> None:
    """Feed a body that begins at a position of the file; return as soon as the rest is not needed."""
    buffered = b""
    while chunk := await body.receive_some():
        buffered += chunk
        needed = reader.next_range
        while needed is not None and position + len(buffered) >= needed.offset + needed.length:
            piece = buffered[needed.offset - position :]
            position, buffered = needed.offset + len(piece), b""
            reader.feed(piece)
            needed = reader.next_range
        if needed is None or (end is not None and needed.offset >= end):
            return
        if needed.offset > position:  # the reader skips some bytes, perhaps more than are buffered
            skipped = min(len(buffered), needed.offset - position)
            position, buffered = position + skipped, buffered[skipped:]
    if end is None and (needed := reader.next_range) is not None:
        reader.feed(buffered[needed.offset - position :])  # the file ends here, so the reader raises


def _interpret(request: RangeRequest, response: FileResponse, now: datetime.datetime) -> ReadBody:
    """Return the position of the body in the file; raise if there is none."""
    status, headers = response.status, response.headers
    if status == 416 and not request.offset and range_total(headers) == 0:
        raise NotGGUFError(f"{request.shown} is empty")
    part = status == 206
    verdict = (
        interpret_part(request, headers)
        if part
        else interpret(request, status, headers, redirected=response.redirected, now=now)
    )
    if not isinstance(verdict, ReadBody):
        raise FetchError(f"{request.shown}: the file on the server changed while its header was being read; try again")
    return verdict
