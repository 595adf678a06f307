"""Connections to servers outside, as an `Egress` defines them: through proxies, with additional certificates."""

import functools
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from llmkube.base.errors import UserError
from llmkube.base.http.client import HttpClient
from llmkube.base.http.dial import CREDENTIALS_HINT, Connect, ProxyDialer, proxy_credentials
from llmkube.base.http.egress import Egress, redacted
from llmkube.base.http.errors import ConnectError
from llmkube.base.http.message import Origin, netloc
from llmkube.base.http.streamed_response import StreamedResponse
from llmkube.base.lazy_log import LazyLog

BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Gentoo
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, Red Hat
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # Alpine, macOS, BSD
)
"""Files with the system's certificates, where OpenSSL's own path has none (paths as in Go's crypto/x509)."""

log = LazyLog()


class CertificateFileError(UserError):
    """A certificate file is unusable."""


def trusted_context(ca_file: Path | None = None) -> ssl.SSLContext:
    """Return a client's TLS context that trusts the system's authorities and those in a file; see `trust_system`.

    Blocks, for a second on a busy machine: call it in a thread. Callers share the context of unchanged files.

    Raises:
        CertificateFileError: The file has no readable certificates.
    """
    names = (str(ca_file or ""), system_bundle(), *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
    files = [Path(name) for name in names if name]
    return _trusted_context(ca_file, *((each, each.stat().st_mtime_ns if each.exists() else 0) for each in files))


@functools.lru_cache(maxsize=8)
def _trusted_context(ca_file: Path | None, *_files: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # X.509 strict mode, on by default since Python 3.13, rejects many companies' CAs; Go and curl accept them
    context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
    trust_system(context)
    if ca_file is not None:
        trust_file(context, ca_file)
    return context


def trust_file(context: ssl.SSLContext, ca_file: Path, field: str = "--ca-file") -> None:
    """Trust the certificates in a file; blocks.

    Raises:
        CertificateFileError: The file has no readable certificates.
    """
    try:
        context.load_verify_locations(cafile=ca_file)
    except (OSError, ssl.SSLError) as exc:
        reason = "it has no certificates" if isinstance(exc, ssl.SSLError) else exc.strerror
        message = f"cannot read certificates from {ca_file}: {reason}; set it to a file of PEM certificates"
        raise CertificateFileError(message, field=field) from exc


def trust_system(context: ssl.SSLContext) -> None:
    """Trust the system's certificates, and those of `SSL_CERT_FILE` and `SSL_CERT_DIR`; blocks.

    To OpenSSL the variables replace the system's list; here they add to it. A file of the variable that cannot be read
    is logged: a pod's may be a ConfigMap that does not exist in its namespace.
    """
    context.load_verify_locations(cafile=system_bundle())
    folders = os.environ.get("SSL_CERT_DIR", "").split(os.pathsep)
    for folder in filter(None, (ssl.get_default_verify_paths().openssl_capath, *folders)):
        context.load_verify_locations(capath=folder)  # read when a certificate is looked up
    if name := os.environ.get("SSL_CERT_FILE", ""):
        try:
            trust_file(context, Path(name), "SSL_CERT_FILE")
        except CertificateFileError as error:
            log.warning("certificates not trusted", error=str(error))


def system_bundle() -> str:
    """Return the file with the system's certificates; that of the certifi package if the system has none."""
    for file in (ssl.get_default_verify_paths().openssl_cafile, *BUNDLES):
        if os.access(file, os.R_OK) and Path(file).stat().st_size:
            return file
    import certifi  # noqa: PLC0415 (only for systems without certificates)

    return certifi.where()


@attrs.frozen
class OutboundDialer:
    """Open connections for requests to servers, below their TLS: tunnels for https, the proxy itself for http.

    Attributes:
        egress: Has the proxies.
        scheme: Scheme of the requests' URLs.
        connect: Opens the connection to the server or the proxy.
        context: Returns the certificates to trust for an https proxy.
    """

    egress: Egress
    scheme: str
    connect: Connect
    context: Callable[[], ssl.SSLContext]

    async def __call__(self, host: str, port: int) -> trio.abc.Stream:
        """Open a connection; raises OSError, or ConnectError if the environment is invalid."""
        if not (proxy := self.egress.proxy_of(self.scheme, host, port)):
            return await self.connect(host, port)
        dialer = ProxyDialer(proxy, self.connect, self.context)
        return await (dialer(host, port) if self.scheme == "https" else dialer.connect_to_proxy())


class OutboundClient(HttpClient):
    """Send plain http requests, each to a server or to its proxy, which gets the whole URL (RFC 9112, 3.2.2).

    Args:
        egress: Has the proxies.
        connect: Opens connections, such as an `OutboundDialer` for http.
        limits: As for `HttpClient`.
    """

    def __init__(self, egress: Egress, connect: Connect, **limits: Any) -> None:
        super().__init__(connect, **limits)
        self._egress = egress

    async def start(self, origin: Origin, method: str, head: bytes, body: bytes, **options: Any) -> StreamedResponse:
        """Send a request as `HttpClient.start` does."""
        if not (proxy := self._egress.proxy_of("http", *origin)):
            return await super().start(origin, method, head, body, **options)
        answer = await super().start(origin, method, _absolute(head, origin, proxy), body, **options)
        if answer.status == 407:
            await trio.aclose_forcefully(answer.stream)
            raise ConnectError(f"the proxy {redacted(proxy)} answered 407; {CREDENTIALS_HINT}")
        return answer


def _absolute(head: bytes, origin: Origin, proxy: str) -> bytes:
    """Return the head of a request for a proxy: with the whole URL, and credentials for the proxy."""
    method, target, rest = head.split(b" ", 2)
    version, _, lines = rest.partition(b"\r\n")
    own = "".join(f"{line}\r\n" for line in proxy_credentials(proxy)).encode("latin-1")
    return b"%b http://%b%b %b\r\n%b%b" % (method, netloc(origin).encode("ascii"), target, version, own, lines)
