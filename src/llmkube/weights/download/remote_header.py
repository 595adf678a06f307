"""The facts of a GGUF file that is elsewhere, without downloading it: its header, in at most three Range requests.

The requests go the way of downloads: the same redirects, the same judgement of every address, credentials only to the
origin that they belong to. Nothing touches the disk.
"""

import datetime
from collections.abc import Callable
from typing import Final

import attrs

from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download import hugging_face
from llmkube.weights.download.buckets import BucketAccess, Signer
from llmkube.weights.download.guarded_transport import OpenTransport, open_transport_with
from llmkube.weights.download.redirects import Credential, FileRequest, FileResponse, as_fetch_errors, open_response
from llmkube.weights.errors import FetchError, NotGGUFError, RangeError
from llmkube.weights.formats.gguf import GGUFFacts, facts_of
from llmkube.weights.formats.gguf_reader import HeaderReader
from llmkube.weights.http_responses import RangeRequest, ReadBody, interpret, interpret_part, range_total, refusal
from llmkube.weights.source import BucketFile, HubRepository, RemoteFile, WebFile
from llmkube.weights.urls import WebUrl

REQUEST_BYTES: Final = (1 << 20, 7 << 20, 24 << 20)
"""How much each request asks for: small models end within the first, vocabularies of 150,000 tokens within the second,
the largest known ones within the third."""

MAX_REMOTE_BYTES: Final = sum(REQUEST_BYTES)
"""A longer header is refused, also where a server sends the whole file instead of a part."""

_LISTING_BYTES: Final = 32 << 20


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
    carry = open_transport_with() if open_transport is None else open_transport
    hub_url = hugging_face.parse_endpoint(endpoint)
    token_for_hub = Credential.bearer(hub_url, token) if token else None
    if isinstance(source, WebFile):
        at_hub = source.url.origin == hub_url.origin
        own = Credential.basic(source.url, source.user_info) if source.user_info is not None else None
        credential = own or (token_for_hub if at_hub else None)
        place = _RemoteFile(source.redacted, source.url, policy, credential, at_hub, carry, utcnow)
        return await _read(place)
    if isinstance(source, BucketFile):
        who = access or BucketAccess()
        url = who.url(source.bucket, source.path)
        signer = Signer(url.origin, who, utcnow) if who.key_id else None
        return await _read(_RemoteFile(source.redacted, url, policy, signer, False, carry, utcnow, bucket=True))
    name = source.name if isinstance(source, HubRepository) else source.repository
    place = _RemoteFile(source.redacted, hub_url, policy, token_for_hub, True, carry, utcnow)
    if isinstance(source, HubRepository):
        listing = await _list(attrs.evolve(place, url=hugging_face.listing_url(hub_url, name, source.revision)))
        file = hugging_face.choose(source, listing).file
        place = attrs.evolve(place, shown=file.redacted)
        source = attrs.evolve(file, revision=listing.commit or file.revision)
    return await _read(attrs.evolve(place, url=hugging_face.file_url(hub_url, source)))


@attrs.frozen
class _RemoteFile:
    """Where something is, and how to get there."""

    shown: str
    url: WebUrl
    policy: AddressPolicy
    credential: Credential | Signer | None
    hub: bool
    open_transport: OpenTransport
    utcnow: Callable[[], datetime.datetime]
    bucket: bool = False

    def request(self, **headers: str) -> FileRequest:
        return FileRequest(self.url, self.policy, self.credential, headers)

    def asked(self) -> RangeRequest:
        return RangeRequest(shown=self.shown, hub=self.hub, bucket=self.bucket, credential=self.credential is not None)


async def _read(place: _RemoteFile) -> GGUFFacts:
    reader: HeaderReader | None = None
    asked = place.asked()
    for length in REQUEST_BYTES:
        if reader is not None and reader.wanted is not None:
            asked = attrs.evolve(asked, offset=reader.wanted.offset)
        end = asked.offset + length
        request = place.request(Range=f"bytes={asked.offset}-{end - 1}")
        async with place.open_transport(place.policy) as transport, open_response(transport, request) as response:
            take = _judge(asked, response, place.utcnow())
            total = response.linked_size if take.total_bytes is None else take.total_bytes
            if reader is None or take.offset == 0:
                reader = HeaderReader(place.shown, total, limit_bytes=MAX_REMOTE_BYTES)
            asked = attrs.evolve(asked, validator=take.validator, total_bytes=total)
            with as_fetch_errors(place.url):
                await _feed_body(response.body, take.offset, reader, end if response.status == 206 else None)
        if reader.wanted is None:
            return facts_of(reader)
    raise RangeError(f"{place.shown}: the server sends parts that are shorter than what was asked for")


async def _feed_body(body: StreamedResponse, position: int, reader: HeaderReader, end: int | None) -> None:
    """Feed a body that begins at a position of the file; return as soon as nothing more of it is of use."""
    held = b""
    while chunk := await body.receive_some():
        held += chunk
        wanted = reader.wanted
        while wanted is not None and position + len(held) >= wanted.offset + wanted.length:
            piece = held[wanted.offset - position :]
            position, held = wanted.offset + len(piece), b""
            reader.feed(piece)
            wanted = reader.wanted
        if wanted is None or (end is not None and wanted.offset >= end):
            return
        if wanted.offset > position:  # stepped over, all that is held or more
            gone = min(len(held), wanted.offset - position)
            position, held = position + gone, held[gone:]
    if end is None and (wanted := reader.wanted) is not None:
        reader.feed(held[wanted.offset - position :])  # so the file ends here, and the reader says what it lacks


def _judge(asked: RangeRequest, response: FileResponse, now: datetime.datetime) -> ReadBody:
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


async def _list(place: _RemoteFile) -> hugging_face.Listing:
    """Ask the hub for the files of a repository."""
    async with place.open_transport(place.policy) as transport, open_response(transport, place.request()) as response:
        if response.status != 200:
            now = place.utcnow()
            raise refusal(place.asked(), response.status, response.headers, redirected=response.redirected, now=now)
        body = bytearray()
        with as_fetch_errors(place.url):
            while chunk := await response.body.receive_some():
                body += chunk
                if len(body) > _LISTING_BYTES:
                    raise FetchError(f"{place.shown}: the hub's list of files is too long")
    return hugging_face.parse_listing(place.shown, bytes(body))
