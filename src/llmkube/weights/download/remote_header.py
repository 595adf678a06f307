"""The facts of a GGUF file that is elsewhere, without downloading it: its header, in at most three Range requests.

The requests go the way of downloads: the same redirects, the same judgement of every address, credentials only to the
origin that they belong to. Nothing touches the disk.
"""

import datetime
import math
import random
from collections.abc import Callable
from typing import Final

import attrs

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
"""How much each request asks for: small models end within the first, vocabularies of 150,000 tokens within the second,
the largest known ones within the third."""

MAX_REMOTE_BYTES: Final = sum(REQUEST_BYTES)
"""A longer header is refused, also where a server sends the whole file instead of a part."""


async def read_remote_header(
    source: RemoteFile,
    *,
    policy: AddressPolicy,
    utcnow: Callable[[], datetime.datetime],
    token: str | None = None,
    access: BucketAccess | None = None,
    endpoint: str = hugging_face.ENDPOINT,
    open_transport: OpenTransport | None = None,
) -> GGUFFacts:
    """Read what the header of a remote file says, in at most three requests besides redirects; nothing is kept.

    A server that does not serve parts is read until the header ends, and no further. Of a split model it is the first
    part's header; a bare repository is listed first (one more request), to find the model in it. There is one attempt,
    and no deadline but the caller's.

    Args:
        source: What `parse_source` made of an `http://`, `https://`, `hf://` or `s3://` source.
        policy: What the source may lead to: `AddressPolicy(from_operator=True)` for one from the command line.
        utcnow: The wall clock, for pauses that a server asks for by date.
        token: For the hub alone.
        access: For an object in a bucket; without it the bucket has to be public.
        endpoint: The hub's address, or a mirror's.
        open_transport: What carries requests; None for real sockets, with every address checked.

    Raises:
        NotGGUFError: No engine could load the file, or its header is longer than `MAX_REMOTE_BYTES`.
        WeightsError: The source is wrong or leads somewhere refused, or access is denied; see `weights.errors`.
        FetchError: The network or the server got in the way; the same call may succeed later.
    """
    limits = DownloadLimits(head_seconds=math.inf, tries=1)
    network = Network(open_transport or open_transport_with(), utcnow, random.SystemRandom(), limits)
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
    wanted = resolver.hub_file(pinned, hugging_face.HubEntry(file.path))
    return await _read(attrs.evolve(wanted, shown=file.redacted), network)


async def _read(wanted: FileRequest, network: Network) -> GGUFFacts:
    reader: HeaderReader | None = None
    asked = wanted.asked()
    for length in REQUEST_BYTES:
        if reader is not None and reader.wanted is not None:
            asked = attrs.evolve(asked, offset=reader.wanted.offset)
        end = asked.offset + length
        headers = {"Range": f"bytes={asked.offset}-{end - 1}"}
        async with open_response(network.open_transport(wanted.policy), wanted, headers) as response:
            verdict = _interpret(asked, response, network.utcnow())
            total = response.linked_size if verdict.total_bytes is None else verdict.total_bytes
            if reader is None or verdict.offset == 0:
                reader = HeaderReader(wanted.shown, total, limit_bytes=MAX_REMOTE_BYTES)
            asked = attrs.evolve(asked, validator=verdict.validator, total_bytes=total)
            with as_fetch_errors(wanted.url):
                await _feed_body(response.body, verdict.offset, reader, end if response.status == 206 else None)
        if reader.wanted is None:
            return facts_of(reader)
    raise RangeError(f"{wanted.shown}: the server sends parts that are shorter than what was asked for")


async def _feed_body(body: StreamedResponse, position: int, reader: HeaderReader, end: int | None) -> None:
    """Feed a body that begins at a position of the file; return as soon as nothing more of it is of use."""
    buffered = b""
    while chunk := await body.receive_some():
        buffered += chunk
        wanted = reader.wanted
        while wanted is not None and position + len(buffered) >= wanted.offset + wanted.length:
            piece = buffered[wanted.offset - position :]
            position, buffered = wanted.offset + len(piece), b""
            reader.feed(piece)
            wanted = reader.wanted
        if wanted is None or (end is not None and wanted.offset >= end):
            return
        if wanted.offset > position:  # stepped over, all that is held or more
            skipped = min(len(buffered), wanted.offset - position)
            position, buffered = position + skipped, buffered[skipped:]
    if end is None and (wanted := reader.wanted) is not None:
        reader.feed(buffered[wanted.offset - position :])  # so the file ends here, and the reader says what it lacks


def _interpret(asked: RangeRequest, response: FileResponse, now: datetime.datetime) -> ReadBody:
    """Say where the body belongs, or raise why there is none."""
    status, headers = response.status, response.headers
    if status == 416 and not asked.offset and range_total(headers) == 0:
        raise NotGGUFError(f"{asked.shown} is empty")
    part = status == 206
    verdict = (
        interpret_part(asked, headers)
        if part
        else interpret(asked, status, headers, redirected=response.redirected, now=now)
    )
    if not isinstance(verdict, ReadBody):
        raise FetchError(f"{asked.shown}: the file on the server has changed while its header was read; try again")
    return verdict
