"""Resolve a source to its files, with their URLs, sizes and digests, before anything is downloaded."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NoReturn, TypeVar

import attrs
import trio

from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download import hugging_face, registry
from llmkube.weights.download.buckets import BucketAccess, Signer
from llmkube.weights.download.progress import Meter, Progress
from llmkube.weights.download.redirects import Credential, FileRequest, FileResponse, as_fetch_errors, open_response
from llmkube.weights.download.registry import RegistryAccess
from llmkube.weights.download.retry import Network, retry
from llmkube.weights.download.transfer import TransferRequest
from llmkube.weights.errors import AccessDeniedError, DigestMismatchError, FetchError, SourceError, StalledError
from llmkube.weights.http_responses import (
    REGISTRY_ADVICE,
    RemoteVersion,
    Validator,
    content_length,
    linked_digest,
    range_total,
    refusal,
)
from llmkube.weights.source import BucketFile, HubFile, HubFolder, HubRepository, ImageSource, Remote, WebFile
from llmkube.weights.split_names import choose_projector
from llmkube.weights.store.index import Audience, key_of
from llmkube.weights.urls import UserInfo, WebUrl

T = TypeVar("T")

_LISTING_BYTES: Final = 32 << 20
_TOKEN_BYTES: Final = 64 << 10
_MANIFESTS: Final = 3  # an index, its manifest, and one more than needed


def is_at_hub(source: Remote, endpoint: WebUrl) -> bool:
    """Return whether a source is fetched from the hub, which may be a mirror."""
    if isinstance(source, WebFile):
        return source.url.origin == endpoint.origin
    return not isinstance(source, BucketFile | ImageSource)


@attrs.frozen
class DownloadJob:
    """The request of one caller; callers with equal jobs, and so with the same credential, share a download.

    Attributes:
        source: The source to fetch.
        sha256: The digest that it must have.
        token: For the hub.
        policy: The allowed addresses.
        access: For a bucket.
        credential: The keyed digest of all credentials that are sent; empty without any.
        owner: Whether the caller is the store's owner, who may use everything in it.
        registry: For a registry.
    """

    source: Remote
    sha256: str | None
    token: str | None = attrs.field(repr=False)
    policy: AddressPolicy
    access: BucketAccess = BucketAccess()
    credential: str = ""
    owner: bool = True
    registry: RegistryAccess = RegistryAccess()

    def admits(self, audience: Audience) -> bool:
        """Return whether this job may use a stored blob with the digest, from a record with this audience."""
        return self.owner or audience.shares_with(self.credential)


@attrs.frozen
class Resolver:
    """Resolves the source of one job to the requests that fetch its files.

    Attributes:
        network: The transport, clock and limits of requests.
        endpoint: The address of the hub or of a mirror.
        job: The source, its digest and credentials.
        meter: Receives waits and the chosen file.
        memory_bytes: This host's memory budget for models; None if unknown.
    """

    network: Network
    endpoint: WebUrl
    job: DownloadJob
    meter: Meter
    memory_bytes: int | None = None

    async def resolve(self) -> Sequence[TransferRequest]:
        """Return the files to download; problems that can be detected beforehand are raised here."""
        source = self.job.source
        self.meter.progress(Progress("resolving"))
        if isinstance(source, WebFile):
            self._refuse_one_digest_for_many(len(source.parts))
            return await self._probe_all([self.web_file(source, url) for url in source.parts])
        if isinstance(source, BucketFile):
            if not source.path or source.path.endswith("/"):
                raise SourceError(f"{source.redacted} is a folder of a bucket; set spec.files to the file to fetch")
            self._refuse_one_digest_for_many(len(source.parts))
            return await self._probe_all([self.bucket_file(source, path) for path in source.parts])
        if isinstance(source, ImageSource):
            return await self._resolve_image(source)
        if isinstance(source, HubFile) and len(source.parts) == 1:
            return [self.hub_file(source, hugging_face.HubEntry(source.path))]
        name = source.repository if isinstance(source, HubFile) else source.name
        if isinstance(source, HubFolder) and self.job.sha256 is not None:
            raise DigestMismatchError(
                f"one digest cannot describe the files of {source.redacted}; remove spec.sha256, and use a commit "
                "(hf://ORG/REPO@COMMIT) to pin the files"
            )
        listing = await self.listing(name, source.revision)
        # Pinned to one commit, so that files of two versions are not mixed while a model is being replaced.
        revision = listing.commit or source.revision
        if isinstance(source, HubFolder):
            entries = hugging_face.folder_entries(source, listing)
        elif isinstance(source, HubRepository):
            choice = hugging_face.choose(source, listing, memory_bytes=self.memory_bytes)
            entries, self.meter.chosen = hugging_face.entries_of(choice.file, listing), choice.reason
            self.meter.projector = choose_projector(choice.file.path, listing.files)
        else:
            entries = hugging_face.entries_of(source, listing)
        self._refuse_one_digest_for_many(len(entries))
        requests = [self.hub_file(HubFile(name, entry.path, revision), entry) for entry in entries]
        if isinstance(source, HubFolder):
            return [attrs.evolve(one, name=entry.path) for one, entry in zip(requests, entries, strict=True)]
        return requests

    def hub_file(self, file: HubFile, entry: hugging_face.HubEntry) -> TransferRequest:
        """Return the request for one file of a repository, with its size and digest from the hub."""
        expected = self.job.sha256
        if expected is not None and entry.sha256 not in (None, expected):
            raise DigestMismatchError(
                f"{file.redacted} has the digest {entry.sha256} at the hub, but spec.sha256 is {expected}; "
                "correct the digest, or the source"
            )
        request = self._request(file.redacted, hugging_face.file_url(self.endpoint, file), file.identity)
        return attrs.evolve(
            request,
            credential=self._credential(),
            server="hub",
            sha256=expected or entry.sha256,
            size_bytes=entry.size_bytes,
        )

    def web_file(self, source: WebFile, url: WebUrl) -> TransferRequest:
        """Return the request for one part of a file on a web server, which may be the hub's."""
        at_hub = is_at_hub(source, self.endpoint)
        credential = Credential.basic(source.url, source.user_info) if source.user_info is not None else None
        request = self._request(url.shown, url, str(url))
        credential = credential or (self._credential() if at_hub else None)
        request = attrs.evolve(request, is_gguf=source.is_gguf)
        return attrs.evolve(request, credential=credential, server="hub" if at_hub else "web")

    def bucket_file(self, source: BucketFile, path: str) -> TransferRequest:
        """Return the request for one part of an object in a bucket."""
        url, part, auth = self.job.access.url(source.bucket, path), attrs.evolve(source, path=path), self.job.access
        request = self._request(part.redacted, url, f"{auth.server} {part.identity}")
        signer = Signer(url.origin, auth, self.network.utcnow) if auth.key_id else None
        return attrs.evolve(request, credential=signer, server="bucket")

    async def _resolve_image(self, source: ImageSource) -> Sequence[TransferRequest]:
        reference, credential = source.reference, None
        for _ in range(_MANIFESTS):
            url = registry.registry_url(source, f"manifests/{reference}")
            body, credential = await self._manifest(source, url, credential)
            found = await trio.to_thread.run_sync(registry.parse_manifest, source, reference, body)  # up to 4 MiB
            if not isinstance(found, str):
                break
            reference = found
        else:
            raise FetchError(f"{source.redacted}: the registry's indexes refer only to other indexes")
        layers = registry.choose_layers(source, found)
        self._refuse_one_digest_for_many(len(layers))
        for layer in layers:
            if self.job.sha256 not in (None, layer.sha256):
                raise DigestMismatchError(
                    f"the registry has {layer.name or source.redacted} with the digest {layer.sha256}, but spec.sha256 "
                    f"is {self.job.sha256}; correct the digest, or the source"
                )
        return [
            attrs.evolve(
                self._request(source.redacted, registry.blob_url(source, layer), f"{source.identity} {layer.sha256}"),
                credential=credential,
                server="registry",
                sha256=layer.sha256,
                size_bytes=layer.size_bytes,
            )
            for layer in layers
        ]

    async def _manifest(
        self, source: ImageSource, url: WebUrl, credential: Credential | None
    ) -> tuple[bytes, Credential | None]:
        """Return a manifest, after a login if the registry requires one, and the credential that it accepts."""
        shown, headers = source.redacted, {"Accept": registry.ACCEPT}
        while True:
            request = FileRequest(shown, url, self.job.policy, credential, "registry")

            async def read(response: FileResponse, request: FileRequest = request) -> bytes | registry.Challenge:
                challenge = response.headers.get("www-authenticate", "")
                if response.status == 401 and challenge and request.credential is None and not response.redirected:
                    return registry.parse_challenge(shown, url, challenge)
                if response.status != 200:
                    self._refuse(request, response)
                return await _read_body(response, request.url, registry.MANIFEST_BYTES, f"{shown}: the manifest")

            answer = await self._send(request, read, headers)
            if isinstance(answer, bytes):
                return answer, credential
            credential = await self._login(source, url, answer)  # with it, `read` raises instead of another challenge

    async def _login(self, source: ImageSource, url: WebUrl, challenge: registry.Challenge) -> Credential:
        shown, auth = source.redacted, UserInfo(self.job.registry.user, self.job.registry.password)
        if challenge.realm is None:
            if not auth.user:
                raise AccessDeniedError(f"{shown}: the registry requires a user and password; {REGISTRY_ADVICE}")
            return Credential.basic(url, auth)
        at = challenge.token_url(source.repository)
        request = FileRequest(shown, at, self.job.policy, Credential.basic(at, auth) if auth.user else None, "registry")

        async def read(response: FileResponse) -> str:
            if response.status != 200:  # the password was sent here, not a token
                self._refuse(attrs.evolve(request, shown=f"{shown}: {at.shown}", credential=None), response)
            return registry.parse_token(shown, await _read_body(response, at, _TOKEN_BYTES, f"{shown}: the token"))

        return Credential.bearer(url, await self._send(request, read))

    async def _probe_all(self, each: Sequence[TransferRequest]) -> Sequence[TransferRequest]:
        if len(each) == 1:
            return each
        # A missing part, or a disk that is too small, must be reported before the first 40 GB, not after them.
        seen = [await self.probe(one) for one in each]
        return [attrs.evolve(w, size_bytes=s.size_bytes, sha256=s.sha256) for w, s in zip(each, seen, strict=True)]

    def _credential(self) -> Credential | None:
        return Credential.bearer(self.endpoint, self.job.token) if self.job.token else None

    async def listing(self, name: str, revision: str) -> hugging_face.Listing:
        """Return the files of a repository from the hub."""
        url = hugging_face.listing_url(self.endpoint, name, revision)
        request = FileRequest(self.job.source.redacted, url, self.job.policy, self._credential(), "hub")

        async def read(response: FileResponse) -> hugging_face.Listing:
            if response.status != 200:
                self._refuse(request, response)
            body = await _read_body(response, request.url, _LISTING_BYTES, f"{request.shown}: the hub's list of files")
            return hugging_face.parse_listing(request.shown, body)

        return await self._send(request, read)

    async def probe(self, request: TransferRequest) -> RemoteVersion:
        """Request only the first bytes, and return the size, digest and version of a file; raise if it is missing."""

        async def read(response: FileResponse) -> RemoteVersion:  # noqa: ASYNC124 (only the head is read)
            if response.status not in (200, 206):
                self._refuse(request, response)
            size = (range_total if response.status == 206 else content_length)(response.headers)
            size = response.linked_size if size is None else size
            digest = response.linked_sha256 or linked_digest(response.headers)
            if request.server == "registry":  # a blob is identified by its digest
                digest = request.sha256
            return RemoteVersion(size, digest, Validator.of(response.headers))

        return await self._send(request, read, {"Range": "bytes=0-3"})

    async def _send(
        self, request: FileRequest, read: Callable[[FileResponse], Awaitable[T]], headers: Mapping[str, str] = {}
    ) -> T:
        limits, carry = self.network.limits, self.network.open_transport

        async def attempt() -> T:
            with trio.move_on_after(limits.head_seconds):
                async with open_response(carry(request.policy), request, headers) as response:
                    return await read(response)
            raise StalledError(f"{request.shown}: no answer in {limits.head_seconds:g} s")

        return await retry(attempt, origin=request.url.origin, network=self.network, waiting=self.meter.waiting)

    def _request(self, shown: str, url: WebUrl, identity: str) -> TransferRequest:
        job = self.job  # with a credential, an incomplete file is resumed only with the same one
        key = key_of(f"{identity} {job.credential}" if job.credential else identity)
        promised_by = "spec.sha256" if job.sha256 else ""
        return TransferRequest(shown, url, job.policy, key=key, sha256=job.sha256, promised_by=promised_by)

    def _refuse_one_digest_for_many(self, parts: int) -> None:
        if parts > 1 and self.job.sha256 is not None:
            raise DigestMismatchError(
                f"one digest cannot describe the {parts} parts of {self.job.source.redacted}; remove spec.sha256 "
                "(parts from Hugging Face are verified against its digests)"
            )

    def _refuse(self, request: FileRequest, response: FileResponse) -> NoReturn:
        now = self.network.utcnow()
        raise refusal(request.ranged(), response.status, response.headers, redirected=response.redirected, now=now)


async def _read_body(response: FileResponse, url: WebUrl, limit_bytes: int, label: str) -> bytes:
    body = bytearray()
    with as_fetch_errors(url):
        while chunk := await response.body.receive_some():
            body += chunk
            if len(body) > limit_bytes:
                raise FetchError(f"{label} is too long")
    return bytes(body)
