"""An httpx transport that adds credentials and TLS, and renews both.

Authentication is below the client, so the same client runs over an in-memory transport without any. Private keys are on
the disk only for an instant, as files of mode 0600.
"""

import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from llmkube.base.http.httpx_transport import HttpxTransport
from llmkube.base.http.outbound import trust_system
from llmkube.base.times import utcnow
from llmkube.k8s.auth.config import ClientCertificate, ClusterConfig, ConfigError, Pem, TlsSettings
from llmkube.k8s.auth.credentials import Credential, make_credentials
from llmkube.k8s.errors import CredentialsError

Connect = Callable[[ssl.SSLContext], httpx.AsyncBaseTransport]

KEEPALIVE_EXPIRY_SECONDS: Final = 60.0
"""Below kube-apiserver's own idle limit of 90 s, above the 10 s of a Lease: renewals reuse their connection."""

CLOSE_SECONDS: Final = 2.0
"""The time limit for closing the connections of a pool."""


class AuthTransport(httpx.AsyncBaseTransport):
    """Send requests with the identity of the configuration.

    After a 401, the credentials are renewed and the request is repeated once. When a certificate, key or CA file
    changes, or a plugin issues another certificate, new requests use new connections; the old ones close when their
    responses have ended.

    Args:
        config: The server, TLS settings and identity.
        connect: Returns the underlying transport for a TLS context; by default a pool of TCP connections.

    Raises:
        ConfigError: A certificate or key cannot be used.
    """

    def __init__(self, config: ClusterConfig, *, connect: Connect | None = None) -> None:
        self._config = config
        self._headers = httpx.Headers(config.headers).raw
        self._connect = connect or partial(
            HttpxTransport,
            server_name=config.tls.server_name,
            proxy_url=config.proxy_url,
            max_idle_seconds=KEEPALIVE_EXPIRY_SECONDS,
        )
        self._credentials = make_credentials(config.identity, utcnow)
        self._pool = _Pool(self._connect, config.tls, None)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request with current credentials; CredentialsError when there are none."""
        credential = await self._credentials.current()
        headers = [*request.headers.raw, *self._headers]
        response = await self._send(request, headers, credential)
        if response.status_code != httpx.codes.UNAUTHORIZED:
            return response
        async with AsyncExitStack() as refused:
            refused.push_async_callback(response.aclose)
            renewed = await self._credentials.renew(credential)
            if renewed == credential:
                refused.pop_all()
                return response
        return await self._send(request, headers, renewed)

    async def aclose(self) -> None:
        """Close all idle connections."""
        await self._pool.retire()

    async def _send(
        self, request: httpx.Request, headers: list[tuple[bytes, bytes]], credential: Credential
    ) -> httpx.Response:
        pool = await self._choose_pool(credential.certificate)
        auth = [(b"Authorization", credential.authorization.encode())] if credential.authorization else []
        request.headers = httpx.Headers([*headers, *auth])  # as httpx's `Auth` does; cheaper than a second Request
        held = False
        pool.hold()
        try:
            response = await pool.transport.handle_async_request(request)
            if not isinstance(response.stream, httpx.ByteStream):  # a ByteStream is in memory and holds no connection
                assert isinstance(response.stream, httpx.AsyncByteStream)
                response.stream, held = _PooledStream(response.stream, pool), True
        finally:
            if not held:
                await pool.release()  # noqa: ASYNC102 (shields itself, with a deadline)
        return response

    async def _choose_pool(self, issued: ClientCertificate | None) -> "_Pool":
        """Return the pool for the current certificates; during an unfinished rotation, the old pool."""
        old = self._pool
        if old.issued == issued and old.stamp == stamp_of(self._config.tls):
            return old
        try:
            self._pool = _Pool(self._connect, self._config.tls, issued)
        except ConfigError as error:
            if old.issued != issued:
                raise CredentialsError(f"the auth plugin's certificate: {error}") from error
            return old
        await old.retire()
        return self._pool


class _Pool:
    """A pool of connections with one TLS context; held once for each response that is being read."""

    def __init__(self, connect: Connect, settings: TlsSettings, issued: ClientCertificate | None) -> None:
        self.stamp = stamp_of(settings)  # before reading, so that a change in between is detected next time
        self.issued = issued
        self.transport = connect(make_context(settings, issued))
        self._open_responses = 0
        self._retired = False

    def hold(self) -> None:
        """Keep the pool open until `release`."""
        self._open_responses += 1

    async def release(self) -> None:
        """Close the pool if it is retired and this was its last response."""
        self._open_responses -= 1
        if self._retired:
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._close_if_unused()

    async def retire(self) -> None:
        """Close the pool when its last response has ended."""
        self._retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._retired and self._open_responses == 0:
            await self.transport.aclose()


class _PooledStream(httpx.AsyncByteStream):
    """A response body that keeps its pool open until it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, pool: _Pool) -> None:
        self._stream = stream
        self._pool: _Pool | None = pool

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        try:
            await self._stream.aclose()
        finally:
            if pool is not None:
                await pool.release()  # noqa: ASYNC102 (shields itself, with a deadline)


Stamp = tuple[tuple[int, int, int], ...]
"""Modification time, inode and size of each file: differs when any file changes."""


def stamp_of(settings: TlsSettings) -> Stamp:
    """Return the current stamp of the files in the settings; cheap enough for every request (stat)."""
    paths = [pem for pem in (settings.ca, settings.certificate, settings.key) if isinstance(pem, Path)]
    stamps = []
    for path in paths:
        try:
            found = path.stat()
        except OSError:  # between unlink and rename of a rotation
            stamps.append((0, 0, 0))
        else:
            stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
    return tuple(stamps)


def make_context(settings: TlsSettings, issued: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return a TLS context for the settings; reads their files.

    Args:
        settings: From the configuration.
        issued: A certificate from an exec plugin, which replaces the one in the settings.

    Raises:
        ConfigError: A file cannot be read or has invalid content.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # X.509 strict mode, on by default since Python 3.13, rejects the CAs of kubeadm and k3s; Go accepts them
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if settings.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca is None:
        trust_system(context)
    else:
        _trust(context, settings.ca)
    if issued is None and settings.certificate is not None and settings.key is not None:
        issued = ClientCertificate(_read(settings.certificate), _read(settings.key))
    if issued is not None:
        _load_certificate(context, issued)
    return context


def _trust(context: ssl.SSLContext, ca: Pem) -> None:
    try:  # non-ASCII text is in comments: bundles name their authorities
        context.load_verify_locations(cadata=_read(ca).decode("ascii", errors="ignore"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"certificate-authority {_label(ca)} has no valid certificate: {error}") from error


def _load_certificate(context: ssl.SSLContext, pair: ClientCertificate) -> None:
    # OpenSSL loads key pairs only from files; mkstemp creates one that only we can read, and it is removed at once
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pair.certificate + b"\n" + pair.key)
        context.load_cert_chain(path, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"client certificate and key cannot be used: {error}") from error
    finally:
        Path(path).unlink()


def _no_password() -> str:
    """Reject encrypted keys: OpenSSL would prompt on the terminal, where a daemon would hang."""
    raise ValueError("the key is encrypted, and a daemon cannot prompt for its password")


def _read(pem: Pem) -> bytes:
    if isinstance(pem, bytes):
        return pem
    try:
        return pem.read_bytes()
    except OSError as error:
        raise ConfigError(f"{pem} cannot be read: {error.strerror}") from error


def _label(pem: Pem) -> str:
    return str(pem) if isinstance(pem, Path) else "data"
