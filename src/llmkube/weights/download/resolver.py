"""Which files a source means, where they are, and what their servers say of them before a byte is fetched."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn, TypeVar

import attrs
import trio

from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download import hugging_face, registry
from llmkube.weights.download.buckets import BucketAccess, Signer
from llmkube.weights.download.progress import Meter
from llmkube.weights.download.redirects import Credential, FileRequest, FileResponse, as_fetch_errors, open_response
from llmkube.weights.download.registry import RegistryAccess
from llmkube.weights.download.retry import Dependencies, retry
from llmkube.weights.download.transfer import TransferRequest
from llmkube.weights.errors import AccessDeniedError, DigestMismatchError, FetchError, SourceError, StalledError
from llmkube.weights.http_responses import (
    REGISTRY_ADVICE,
    RangeRequest,
    RemoteVersion,
    Validator,
    linked_digest,
    range_total,
    refusal,
)
from llmkube.weights.source import BucketFile, HubFile, HubFolder, HubRepository, ImageSource, Remote, WebFile
from llmkube.weights.store.index import Audience, key_of
from llmkube.weights.urls import UserInfo, WebUrl

T = TypeVar("T")

_LISTING_BYTES: Final = 32 << 20
_TOKEN_BYTES: Final = 64 << 10
_MANIFESTS: Final = 3  # an index, what it leads to, and one more than is needed


@attrs.frozen
class DownloadJob:
    """What one caller asks for; callers with equal jobs share a download, and present the same credential.

    Attributes:
        source: What to fetch.
        sha256: The digest that it must have.
        token: For the hub.
        policy: What it may lead to.
        access: For a bucket.
        credential: The keyed digest of all that goes along to prove who asks; empty for nothing.
        owner: Whether the store's owner asks, who may have all that is in it.
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
        """Whether a blob of such a record may be taken for this job, because it has the digest."""
        return self.owner or audience.shares_with(self.credential)

    def partial_key(self, name: str) -> str:
        """Return the key of an incomplete file: bytes that took a credential are continued with that one alone."""
        return key_of(f"{name} {self.credential}" if self.credential else name)


@attrs.frozen
class Resolver:
    """From a source to the requests that fetch its files.

    Attributes:
        dependencies: What requests are made with.
        endpoint: The hub's address, or a mirror's.
        room_bytes: What models may take of this host's memory; None where that is not known.
    """

    dependencies: Dependencies
    endpoint: WebUrl
    room_bytes: int | None = None

    def is_at_hub(self, source: Remote) -> bool:
        """Whether a source is asked for at the hub, which may be a mirror."""
        if isinstance(source, WebFile):
            return source.url.origin == self.endpoint.origin
        return not isinstance(source, BucketFile | ImageSource)

    async def resolve(self, job: DownloadJob, meter: Meter) -> Sequence[TransferRequest]:
        """Say which files to download from where; what can be known to be wrong is raised here."""
        source = job.source
        meter.resolving()
        if isinstance(source, WebFile):
            return await self._plan_web(job, source, meter)
        if isinstance(source, BucketFile):
            return await self._plan_bucket(job, source, meter)
        if isinstance(source, ImageSource):
            return await self._plan_image(job, source, meter)
        if isinstance(source, HubFolder):
            return await self._plan_folder(job, source, meter)
        if isinstance(source, HubFile) and len(source.parts) == 1:
            return [self._wanted_hub(job, source, hugging_face.HubEntry(source.path))]
        name = source.repository if isinstance(source, HubFile) else source.name
        listing = await self._listing(job, name, source.revision, meter)
        if isinstance(source, HubRepository):
            choice = hugging_face.choose(source, listing, room_bytes=self.room_bytes)
            file, meter.chosen = choice.file, choice.why
        else:
            file = source
        entries = hugging_face.entries_of(file, listing)
        _refuse_one_digest_for_many(job, len(entries))
        # Pinned to one commit: the parts of a model that is just being replaced must not be mixed.
        pinned = attrs.evolve(file, revision=listing.commit or file.revision)
        return [self._wanted_hub(job, attrs.evolve(pinned, path=entry.path), entry) for entry in entries]

    async def _plan_folder(self, job: DownloadJob, source: HubFolder, meter: Meter) -> Sequence[TransferRequest]:
        if job.sha256 is not None:
            raise DigestMismatchError(
                f"one digest cannot describe the files of {source.redacted}; leave spec.sha256 out, and name a commit "
                "(hf://ORG/REPO@COMMIT) to have the same files for ever"
            )
        listing = await self._listing(job, source.name, source.revision, meter)
        entries = hugging_face.folder_entries(source, listing)
        revision = (
            listing.commit or source.revision
        )  # the files of a model that is just being replaced must not be mixed
        files = [HubFile(source.name, entry.path, revision) for entry in entries]
        return [
            attrs.evolve(self._wanted_hub(job, file, entry), name=entry.path)
            for file, entry in zip(files, entries, strict=True)
        ]

    def _wanted_hub(self, job: DownloadJob, file: HubFile, entry: hugging_face.HubEntry) -> TransferRequest:
        if job.sha256 is not None and entry.sha256 not in (None, job.sha256):
            raise DigestMismatchError(
                f"the hub says that {file.redacted} has the digest {entry.sha256}, spec.sha256 asks for {job.sha256}; "
                "correct the digest, or the source"
            )
        return TransferRequest(
            shown=file.redacted,
            url=hugging_face.file_url(self.endpoint, file),
            key=job.partial_key(file.identity),
            policy=job.policy,
            credential=self._credential(job),
            sha256=job.sha256 or entry.sha256,
            promised_by="spec.sha256" if job.sha256 else "",
            size_bytes=entry.size_bytes,
            hub=True,
        )

    async def _plan_web(self, job: DownloadJob, source: WebFile, meter: Meter) -> Sequence[TransferRequest]:
        urls = source.parts
        _refuse_one_digest_for_many(job, len(urls))
        at_hub = self.is_at_hub(source)
        credential = Credential.basic(source.url, source.user_info) if source.user_info is not None else None
        first = TransferRequest(
            shown=source.url.shown,
            url=source.url,
            key=job.partial_key(str(source.url)),
            policy=job.policy,
            credential=credential or (self._credential(job) if at_hub else None),
            sha256=job.sha256,
            promised_by="spec.sha256" if job.sha256 else "",
            hub=at_hub,
        )
        return await self._probed(
            [attrs.evolve(first, shown=url.shown, url=url, key=job.partial_key(str(url))) for url in urls], meter
        )

    async def _plan_bucket(self, job: DownloadJob, source: BucketFile, meter: Meter) -> Sequence[TransferRequest]:
        if not source.path or source.path.endswith("/"):
            raise SourceError(f"{source.redacted} is a folder of a bucket; say in spec.files which file of it to fetch")
        _refuse_one_digest_for_many(job, len(source.parts))
        each, who = [], job.access
        for path in source.parts:
            url, part = who.url(source.bucket, path), attrs.evolve(source, path=path)
            signer = Signer(url.origin, who, self.dependencies.utcnow) if who.key_id else None
            each.append(
                TransferRequest(
                    shown=part.redacted,
                    url=url,
                    key=job.partial_key(f"{who.server} {part.identity}"),
                    policy=job.policy,
                    credential=signer,
                    sha256=job.sha256,
                    promised_by="spec.sha256" if job.sha256 else "",
                    bucket=True,
                )
            )
        return await self._probed(each, meter)

    async def _plan_image(self, job: DownloadJob, source: ImageSource, meter: Meter) -> Sequence[TransferRequest]:
        reference, credential = source.reference, None
        for _ in range(_MANIFESTS):
            url = registry.manifest_url(source, reference)
            body, credential = await self._manifest(job, source, url, credential, meter)
            manifest = await trio.to_thread.run_sync(registry.parse_manifest, source, reference, body)  # up to 4 MiB
            if not manifest.next_digest:
                break
            reference = manifest.next_digest
        else:
            raise FetchError(f"{source.redacted}: the registry's indexes lead to nothing but indexes")
        layers = registry.choose_layers(source, manifest)
        _refuse_one_digest_for_many(job, len(layers))
        for layer in layers:
            if job.sha256 not in (None, layer.sha256):
                raise DigestMismatchError(
                    f"the registry has {layer.name or source.redacted} with the digest {layer.sha256}, spec.sha256 "
                    f"asks for {job.sha256}; correct the digest, or the source"
                )
        return [
            TransferRequest(
                shown=source.redacted,
                url=registry.blob_url(source, layer),
                key=job.partial_key(f"{source.identity} {layer.sha256}"),
                policy=job.policy,
                credential=credential,
                sha256=layer.sha256,
                promised_by="spec.sha256" if job.sha256 else "",
                size_bytes=layer.size_bytes,
                registry=True,
            )
            for layer in layers
        ]

    async def _manifest(
        self, job: DownloadJob, source: ImageSource, url: WebUrl, credential: Credential | None, meter: Meter
    ) -> tuple[bytes, Credential | None]:
        """Ask for a manifest; where the registry wants a login first, give it, and return what it takes."""
        shown, headers = source.redacted, {"Accept": registry.ACCEPT}
        for _ in range(2):
            request = FileRequest(url, job.policy, credential, headers)

            async def read(response: FileResponse, request: FileRequest = request) -> bytes | registry.Challenge:
                wants = response.headers.get("www-authenticate", "")
                if response.status == 401 and wants and request.credential is None and not response.redirected:
                    return registry.parse_challenge(shown, url, wants)
                if response.status != 200:
                    self._refuse(RangeRequest(shown=shown, registry=True), request, response)
                return await _whole(response, request.url, registry.MANIFEST_BYTES, f"{shown}: the manifest")

            answer = await self._ask(request, shown, read, meter)
            if isinstance(answer, bytes):
                return answer, credential
            credential = await self._login(job, source, url, answer, meter)
        raise AccessDeniedError(f"{shown}: the registry asks for one login after the other; {REGISTRY_ADVICE}")

    async def _login(
        self, job: DownloadJob, source: ImageSource, url: WebUrl, wants: registry.Challenge, meter: Meter
    ) -> Credential:
        shown, who = source.redacted, UserInfo(job.registry.user, job.registry.password)
        if wants.realm is None:
            if not who.user:
                raise AccessDeniedError(f"{shown}: the registry asks for a user and password; {REGISTRY_ADVICE}")
            return Credential.basic(url, who)
        at = wants.token_url(source.repository)
        request = FileRequest(at, job.policy, Credential.basic(at, who) if who.user else None)

        async def read(response: FileResponse) -> str:
            if response.status != 200:
                asked = RangeRequest(shown=f"{shown}: {at.shown}", registry=True)
                self._refuse(asked, attrs.evolve(request, credential=None), response)  # no token, but the password
            return registry.parse_token(shown, await _whole(response, at, _TOKEN_BYTES, f"{shown}: the token"))

        return Credential.bearer(url, await self._ask(request, shown, read, meter))

    async def _probed(self, each: Sequence[TransferRequest], meter: Meter) -> Sequence[TransferRequest]:
        if len(each) == 1:
            return each
        # A part that is missing, or a disk that is too small, is better known before the first 40 GB than after them.
        seen = [await self.look(one, meter) for one in each]
        return [attrs.evolve(w, size_bytes=s.size_bytes, sha256=s.sha256) for w, s in zip(each, seen, strict=True)]

    def _credential(self, job: DownloadJob) -> Credential | None:
        return Credential.bearer(self.endpoint, job.token) if job.token else None

    async def _listing(self, job: DownloadJob, name: str, revision: str, meter: Meter) -> hugging_face.Listing:
        request = FileRequest(
            hugging_face.listing_url(self.endpoint, name, revision), job.policy, self._credential(job)
        )
        shown = job.source.redacted

        async def read(response: FileResponse) -> hugging_face.Listing:
            if response.status != 200:
                self._refuse(RangeRequest(shown=shown, hub=True), request, response)
            body = await _whole(response, request.url, _LISTING_BYTES, f"{shown}: the hub's list of files")
            return hugging_face.parse_listing(shown, body)

        return await self._ask(request, shown, read, meter)

    async def look(self, wanted: TransferRequest, meter: Meter) -> RemoteVersion:
        """Ask for the first bytes only, to learn whether the file is there, how long it is and which version."""
        request = FileRequest(wanted.url, wanted.policy, wanted.credential, {"Range": "bytes=0-3"})

        async def read(response: FileResponse) -> RemoteVersion:  # noqa: ASYNC124 (the head says it all)
            if response.status not in (200, 206):
                asked = RangeRequest(shown=wanted.shown, hub=wanted.hub, bucket=wanted.bucket, registry=wanted.registry)
                self._refuse(asked, request, response)
            length = response.headers.get("content-length", "")
            if response.status == 206:
                size = range_total(response.headers)
            else:
                size = int(length) if length.isascii() and length.isdigit() else None
            size = response.linked_size if size is None else size
            digest = response.linked_sha256 or linked_digest(response.headers)
            if wanted.registry:  # a blob is its digest
                digest = wanted.sha256
            return RemoteVersion(size, digest, Validator.of(response.headers))

        return await self._ask(request, wanted.shown, read, meter)

    async def _ask(
        self, request: FileRequest, shown: str, read: Callable[[FileResponse], Awaitable[T]], meter: Meter
    ) -> T:
        async def attempt() -> T:
            with trio.move_on_after(self.dependencies.limits.head_seconds):
                async with (
                    self.dependencies.open_transport(request.policy) as transport,
                    open_response(transport, request) as response,
                ):
                    return await read(response)
            raise StalledError(f"{shown}: no answer in {self.dependencies.limits.head_seconds:g} s")

        return await retry(attempt, origin=request.url.origin, dependencies=self.dependencies, waiting=meter.waiting)

    def _refuse(self, asked: RangeRequest, request: FileRequest, response: FileResponse) -> NoReturn:
        asked = attrs.evolve(asked, credential=request.credential is not None)
        now = self.dependencies.utcnow()
        raise refusal(asked, response.status, response.headers, redirected=response.redirected, now=now)


async def _whole(response: FileResponse, url: WebUrl, most: int, what: str) -> bytes:
    body = bytearray()
    with as_fetch_errors(url):
        while chunk := await response.body.receive_some():
            body += chunk
            if len(body) > most:
                raise FetchError(f"{what} is too long")
    return bytes(body)


def _refuse_one_digest_for_many(job: DownloadJob, parts: int) -> None:
    if parts > 1 and job.sha256 is not None:
        raise DigestMismatchError(
            f"one digest cannot describe the {parts} parts of {job.source.redacted}; leave spec.sha256 out "
            "(parts from Hugging Face are verified against its own digests)"
        )
