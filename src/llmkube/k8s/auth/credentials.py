"""Credentials that renew themselves: token files are reread when they change, exec plugins run again before expiry."""

import base64
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from llmkube.k8s.auth.config import BasicAuth, BearerToken, ClientCertificate, ExecPlugin, Identity, TokenFile, is_token
from llmkube.k8s.errors import CredentialsError

REFRESH_AFTER: Final = 0.8
"""The share of a credential's lifetime after which it is renewed."""

RETRY_SECONDS: Final = 10.0
"""The pause after a failed plugin, while its last credential is valid."""

_STDERR_CHARACTERS = 300


@attrs.frozen
class Credential:
    """Current credentials: an Authorization header, a client certificate, both or neither."""

    authorization: str = attrs.field(default="", repr=False)
    certificate: ClientCertificate | None = attrs.field(default=None, repr=False)


def make_credentials(identity: Identity, utcnow: Callable[[], datetime]) -> "Credentials":
    """Return the source for an identity."""
    if isinstance(identity, ExecPlugin):
        return ExecCredentials(identity, utcnow)
    if isinstance(identity, TokenFile):
        return TokenFileCredentials(identity.path)
    if isinstance(identity, BearerToken):
        return FixedCredentials(Credential(f"Bearer {identity.token}"))
    if isinstance(identity, BasicAuth):
        pair = base64.b64encode(f"{identity.username}:{identity.password}".encode()).decode()
        return FixedCredentials(Credential(f"Basic {pair}"))
    return FixedCredentials(Credential())


@attrs.frozen
class FixedCredentials:
    """Credentials that never change."""

    credential: Credential

    async def current(self) -> Credential:
        """Return the credential."""
        return self.credential

    async def renew(self, refused: Credential) -> Credential:
        """Return the same credential: there is no other."""
        return self.credential


class TokenFileCredentials:
    """A token in a file that the kubelet or another program updates."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._credential = Credential()

    async def current(self) -> Credential:
        """Read the file if it has changed; if it cannot be read, return the last token."""
        return self._read(force=False)

    async def renew(self, refused: Credential) -> Credential:
        """Read the file unconditionally: some file systems keep the modification time."""
        return self._read(force=True)

    def _read(self, *, force: bool) -> Credential:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino, found.st_size)
            if force or stamp != self._stamp:
                token = self._path.read_text(encoding="ascii").strip()
                if not is_token(token):
                    raise ValueError("it contains no token")
                self._credential, self._stamp = Credential(f"Bearer {token}"), stamp
        except (OSError, ValueError) as error:
            if self._stamp is None:
                raise CredentialsError(f"token file {self._path} cannot be read: {error}") from error
        return self._credential


@attrs.frozen
class IssuedCredential:
    """A credential from a plugin."""

    credential: Credential
    expires_at: datetime | None


class ExecCredentials:
    """Credentials that a plugin prints; it runs once for all waiting tasks, before expiry and after a 401."""

    def __init__(self, plugin: ExecPlugin, utcnow: Callable[[], datetime]) -> None:
        self._plugin = plugin
        self._utcnow = utcnow
        self._lock = trio.Lock()
        self._issued: IssuedCredential | None = None
        self._refresh_at: datetime | None = None

    async def current(self) -> Credential:
        """Return the credential, renewed late in its lifetime; a failed renewal is raised only after its expiry."""
        async with self._lock:
            if self._issued is None or self._is_due(self._refresh_at):
                try:
                    await self._run()
                except CredentialsError:
                    if self._issued is None or self._issued.expires_at is None or self._is_due(self._issued.expires_at):
                        raise
                    self._refresh_at = self._utcnow() + timedelta(seconds=RETRY_SECONDS)
            return self._issued_credential()

    async def renew(self, refused: Credential) -> Credential:
        """Run the plugin, unless another task has already replaced the refused credential."""
        async with self._lock:
            if self._issued is None or self._issued.credential == refused:
                await self._run()
            return self._issued_credential()

    def _issued_credential(self) -> Credential:
        assert self._issued is not None
        return self._issued.credential

    def _is_due(self, at: datetime | None) -> bool:
        return at is not None and self._utcnow() >= at

    async def _run(self) -> None:
        issued = parse_exec_credential(self._plugin, await run_plugin(self._plugin))
        now = self._utcnow()
        self._issued = issued
        self._refresh_at = None if issued.expires_at is None else now + REFRESH_AFTER * (issued.expires_at - now)


Credentials = FixedCredentials | TokenFileCredentials | ExecCredentials
"""A source: `current` returns the credential, `renew` another one after a 401 if there is any."""


async def run_plugin(plugin: ExecPlugin) -> bytes:
    """Run a plugin without a terminal and return its output; it is killed at its deadline.

    Raises:
        CredentialsError: It is missing, failed or took too long; the end of its stderr is quoted.
    """
    info: dict[str, Any] = {"interactive": False}
    if plugin.cluster is not None:
        info["cluster"] = plugin.cluster
    exec_info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": info}
    env = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": json.dumps(exec_info)}
    with trio.move_on_after(plugin.deadline_seconds):
        try:
            completed = await trio.run_process(
                plugin.argv, stdin=b"", capture_stdout=True, capture_stderr=True, check=False, env=env
            )
        except OSError as error:
            hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
            raise CredentialsError(f"auth plugin {plugin.program} cannot be run: {error.strerror}{hint}") from error
        if completed.returncode != 0:
            stderr_text = completed.stderr.decode(errors="replace").strip()[-_STDERR_CHARACTERS:]
            raise CredentialsError(f"auth plugin {plugin.program} exited with {completed.returncode}: {stderr_text}")
        return completed.stdout
    raise CredentialsError(f"auth plugin {plugin.program} took longer than {plugin.deadline_seconds:g} s")


def parse_exec_credential(plugin: ExecPlugin, output: bytes) -> IssuedCredential:
    """Parse an ExecCredential; errors never quote it, since it contains the secret."""
    try:
        printed = json.loads(output)
        if printed["kind"] != "ExecCredential" or printed["apiVersion"] != plugin.api_version:
            raise CredentialsError(
                f"auth plugin {plugin.program} did not print an ExecCredential of {plugin.api_version}"
            )
        status = printed["status"]
        token, expiry = status.get("token") or "", status.get("expirationTimestamp")
        pair = status.get("clientCertificateData"), status.get("clientKeyData")
        certificate = ClientCertificate(pair[0].encode(), pair[1].encode()) if pair[0] and pair[1] else None
        expires_at = _parse_time(expiry) if expiry else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # the cause may quote the output, so it is not chained
        raise CredentialsError(
            f"auth plugin {plugin.program} printed no valid ExecCredential ({type(error).__name__})"
        ) from None
    if token and not is_token(token):
        raise CredentialsError(f"auth plugin {plugin.program} printed a token with invalid characters")
    if not token and certificate is None:
        raise CredentialsError(f"auth plugin {plugin.program} printed neither a token nor a certificate with its key")
    return IssuedCredential(Credential(f"Bearer {token}" if token else "", certificate), expires_at)


def _parse_time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
