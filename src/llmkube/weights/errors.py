"""What can be wrong with weights, each with the word that the Model's `Fetched` condition uses for it.

The user's errors stay until the user edits the Model, mends the file or grants access; the world's may pass by
themselves.
"""

from pathlib import Path
from typing import ClassVar, Self

from llmkube.base.errors import ExternalError, UserError
from llmkube.base.units import format_bytes


class WeightsError(UserError):
    """The Model names weights that cannot be served until the user edits it or mends the file."""

    reason: ClassVar[str] = "FetchFailed"


class SourceError(WeightsError):
    """`spec.source` is not a source that LLMKube understands."""

    reason = "SourceInvalid"

    def __init__(self, message: str) -> None:
        super().__init__(message, field="spec.source")


class SourceUnsupportedError(SourceError):
    """`spec.source` is well formed, but nothing on this path can fetch it yet."""

    reason = "SourceUnsupported"


class SourceNotAllowedError(SourceError):
    """`spec.source` names what the host's owner has not listed; says nothing of what is there."""

    reason = "SourceNotAllowed"

    @classmethod
    def of_path(cls, path: Path) -> Self:
        """Say that a path is outside the folders that are listed."""
        return cls(
            f"{path} is not below a folder that this host's owner allows; let the owner list its folder with "
            "--allow-local-sources (allow_local_sources in config.toml), or move the file below one that is listed"
        )

    @classmethod
    def of_ollama(cls, name: str, remedy: str) -> Self:
        """Say that a model of Ollama's is none of those that are listed.

        Args:
            name: The model's.
            remedy: What helps who is not the owner.
        """
        return cls(
            f"ollama://{name} is not among the models of Ollama that this host's owner allows; let the owner list it "
            f"with --allow-ollama-sources {name} (allow_ollama_sources in config.toml), or {remedy}"
        )


class WeightsNotFoundError(SourceError):
    """`spec.source` names a local path where there are no weights that this host can read.

    The message is the same whatever is there instead: who writes a Model need not know what else is on the host.

    Attributes:
        detail: What it is, for the log of the host's owner.
    """

    reason = "FileNotFound"

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail

    @classmethod
    def at(cls, path: Path, detail: str) -> Self:
        """Say that there are no weights at a path."""
        return cls(
            f"there is no file {path} that this host can serve; check the path, that LLMKube's user may read the file "
            "and its folders, and that it is a GGUF file (LLMKube's log on the host says what is wrong)",
            detail=detail,
        )


class SourceNotFoundError(SourceError):
    """The server has no such file, repository or revision (404, 410)."""

    reason = "SourceNotFound"


class AccessDeniedError(SourceError):
    """The server wants a token, or another one (401, 403)."""

    reason = "AccessDenied"


class SourceRefusedError(SourceError):
    """The server's answer is not a file that can be downloaded, and asking again would not change it."""

    reason = "SourceRefused"


class RedirectError(SourceError):
    """The server sends us somewhere that we do not go: too many hops, out of https, to another scheme."""

    reason = "RedirectRefused"


class AmbiguousSourceError(SourceError):
    """The repository holds several models; the message lists them."""

    reason = "SourceAmbiguous"


class BlockedAddressError(SourceError):
    """A host leads to an address that an object must not make this host talk to.

    Attributes:
        host: The host as the URL names it.
        address: The address that it leads to.
        rule: Which rule of `weights.address_policy` refuses it.
    """

    reason = "AddressBlocked"

    def __init__(self, host: str, address: str, rule: str, *, advice: str) -> None:
        leads = f"{host} leads to {address}" if host != address else address
        super().__init__(f"{leads}, which is refused ({rule}); {advice}")
        self.host = host
        self.address = address
        self.rule = rule


class FileSetError(WeightsError):
    """`spec.files` picks something that cannot be picked from this source."""

    reason = "InvalidFileSet"

    def __init__(self, message: str) -> None:
        super().__init__(message, field="spec.files")


class NotMLXError(WeightsError):
    """The folder holds no MLX model: `config.json` and safetensors files."""

    reason = "NotMLX"


class NotGGUFError(WeightsError):
    """The file is not a GGUF file that an engine could load."""

    reason = "NotGGUF"


class DigestMismatchError(WeightsError):
    """The bytes are not the ones that `spec.sha256`, or the hub, promises.

    Attributes:
        final: The file was downloaded as often as that is worth trying; only another source or digest can help.
    """

    reason = "DigestMismatch"

    def __init__(self, message: str, *, field: str = "spec.sha256", final: bool = False) -> None:
        super().__init__(message, field=field)
        self.final = final


class FetchError(ExternalError):
    """The disk or the network got in the way; the same fetch may succeed later."""

    reason: ClassVar[str] = "FetchFailed"


class WrongSizeError(FetchError):
    """The server sends a file of another size than it, or the hub, promised."""

    reason = "WrongSize"


class RangeError(FetchError):
    """The server answers a request for a part of the file with something that cannot be pieced together."""

    reason = "RangeRefused"


class StalledError(FetchError):
    """Bytes come too slowly to be called a download."""

    reason = "Stalled"


class ThrottledError(FetchError):
    """The server asks us to come back later (429, 503).

    Attributes:
        wait_seconds: When, if it said so.
    """

    reason = "Throttled"

    def __init__(self, message: str, *, wait_seconds: float | None) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class NoSpaceError(FetchError):
    """The disk of the store is too small for the file.

    Attributes:
        needed_bytes: What is still to be written, and room to spare; None when the disk filled up under our hands.
        free_bytes: What is free and not promised to another download.
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
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
