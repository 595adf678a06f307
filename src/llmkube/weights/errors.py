"""Errors of weights, each with its reason in the Model's `Fetched` condition.

A `UserError` persists until the user edits the Model, fixes the file or grants access; an `ExternalError` may be
temporary.
"""

from pathlib import Path
from typing import ClassVar, Self

from llmkube.base.errors import ExternalError, UserError
from llmkube.base.units import format_bytes


class WeightsError(UserError):
    """The weights cannot be served until the user edits the Model or fixes the file."""

    reason: ClassVar[str] = "FetchFailed"


class SourceError(WeightsError):
    """`spec.source` is not a valid source."""

    reason = "SourceInvalid"

    def __init__(self, message: str) -> None:
        super().__init__(message, field="spec.source")


class SourceUnsupportedError(SourceError):
    """`spec.source` is valid, but cannot be fetched here."""

    reason = "SourceUnsupported"


class SourceNotAllowedError(SourceError):
    """`spec.source` is not in the lists of the host's owner; the error does not reveal whether it exists."""

    reason = "SourceNotAllowed"

    @classmethod
    def of_path(cls, path: Path) -> Self:
        """Return the error for a path outside the listed folders."""
        return cls(
            f"{path} is not below an allowed folder; allow its folder on this machine with --allow-local-sources "
            "(allow_local_sources in config.toml), or move the file below an allowed one"
        )

    @classmethod
    def of_ollama(cls, name: str, remedy: str) -> Self:
        """Return the error for a model of Ollama that is not listed.

        Args:
            name: The name of the model.
            remedy: The fix for users other than the owner.
        """
        return cls(
            f"ollama://{name} is not an allowed model of Ollama; allow it on this machine with "
            f"--allow-ollama-sources {name} (allow_ollama_sources in config.toml), or {remedy}"
        )


class WeightsNotFoundError(SourceError):
    """`spec.source` is a local path without weights that this host can read.

    The message does not depend on what is there instead: the author of a Model must not learn what else is on the host.

    Attributes:
        detail: The actual problem, for the log of the host's owner.
    """

    reason = "FileNotFound"

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail

    @classmethod
    def at(cls, path: Path, detail: str) -> Self:
        """Return the error for a path without weights."""
        return cls(
            f"there is no file {path} that this machine can serve; check the path, that LLMKube's user may read the "
            "file and its folders, and that it is a GGUF file (the cause is in LLMKube's log on this machine)",
            detail=detail,
        )


class ProjectorError(WeightsError):
    """`spec.mmproj` names no projector, or that of another model."""

    reason = "InvalidFileSet"

    def __init__(self, message: str) -> None:
        super().__init__(message, field="Model.spec.mmproj")


class SourceNotFoundError(SourceError):
    """The server has no such file, repository or revision (404, 410)."""

    reason = "SourceNotFound"


class AccessDeniedError(SourceError):
    """The server requires a token, or a different one (401, 403)."""

    reason = "AccessDenied"


class SourceRefusedError(SourceError):
    """The server's response is not a file that can be downloaded, and a retry would not help."""

    reason = "SourceRefused"


class RedirectError(SourceError):
    """The server redirects to a URL that is not followed: too many hops, from https to http, another scheme."""

    reason = "RedirectRefused"


class AmbiguousSourceError(SourceError):
    """The repository holds several models; the message lists them."""

    reason = "SourceAmbiguous"


class BlockedAddressError(SourceError):
    """A host resolves to an address to which this host must not connect for an object.

    Args:
        host: The host in the URL.
        address: Its address.
        rule: The rule of `weights.address_policy` that refuses it.
        advice: The fix.
    """

    reason = "AddressBlocked"

    def __init__(self, host: str, address: str, rule: str, *, advice: str) -> None:
        leads = f"{host} resolves to {address}" if host != address else address
        super().__init__(f"{leads}, which is refused ({rule}); {advice}")


class FileSetError(WeightsError):
    """`spec.files` selects files that this source does not have."""

    reason = "InvalidFileSet"

    def __init__(self, message: str) -> None:
        super().__init__(message, field="spec.files")


class NotMLXError(WeightsError):
    """The folder is not an MLX model: `config.json` and safetensors files."""

    reason = "NotMLX"


class NotGGUFError(WeightsError):
    """The file is not a GGUF file that an engine could load."""

    reason = "NotGGUF"


class DigestMismatchError(WeightsError):
    """The file does not have the digest of `spec.sha256` or of the hub.

    Attributes:
        final: All retries are used up; only another source or digest can help.
    """

    reason = "DigestMismatch"

    def __init__(self, message: str, *, field: str = "spec.sha256", final: bool = False) -> None:
        super().__init__(message, field=field)
        self.final = final


class FetchError(ExternalError):
    """The disk or the network failed; the same fetch may succeed later."""

    reason: ClassVar[str] = "FetchFailed"


class WrongSizeError(FetchError):
    """The server sends a file of a different size than it, or the hub, announced."""

    reason = "WrongSize"


class RangeError(FetchError):
    """The server's response to a range request cannot be joined to the part that is present."""

    reason = "RangeRefused"


class StalledError(FetchError):
    """The download is too slow or has stopped."""

    reason = "Stalled"


class ThrottledError(FetchError):
    """The server requests a pause (429, 503).

    Attributes:
        wait_seconds: The length of the pause; None if the server did not state it.
    """

    reason = "Throttled"

    def __init__(self, message: str, *, wait_seconds: float | None) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class NoSpaceError(FetchError):
    """The disk of the store is too small for the file.

    Args:
        where: The folder of the store.
        needed_bytes: The bytes still to be written, plus a margin; None if the disk filled up during a write.
        free_bytes: The free bytes that are not reserved for another download.
        store: Name of the folder in the message.
        remedy: How to free some space.
    """

    reason = "NoSpace"

    def __init__(
        self,
        where: str,
        *,
        needed_bytes: int | None,
        free_bytes: int,
        store: str = "the model store",
        remedy: str = "llmkube cache prune removes models that nothing uses",
    ) -> None:
        need = "the disk has filled up" if needed_bytes is None else f"{format_bytes(needed_bytes)} needed"
        exact = "" if needed_bytes is None else f" ({needed_bytes} bytes needed, {free_bytes} bytes free)"
        super().__init__(
            f"no space in {store}: {need}, {format_bytes(free_bytes)} free in {where}{exact}; "
            f"free some space ({remedy}), or move {store} to a larger disk"
        )
