"""What can be wrong with weights, each with the word that the Model's `Fetched` condition uses for it."""

from typing import ClassVar

from llmkube.base.errors import UserError, WorldError


class WeightsError(UserError):
    """The Model names weights that cannot be served until somebody edits it or mends the file."""

    reason: ClassVar[str] = "FetchFailed"


class SourceError(WeightsError):
    """`spec.source` is not a source that LLMKube understands."""

    reason = "SourceInvalid"

    def __init__(self, message: str) -> None:
        super().__init__(message, field="spec.source")


class SourceUnsupportedError(SourceError):
    """`spec.source` is well formed, but nothing on this path can fetch it yet."""

    reason = "SourceUnsupported"


class WeightsNotFoundError(SourceError):
    """`spec.source` names a local path where there is no readable regular file."""

    reason = "FileNotFound"


class NotGGUFError(WeightsError):
    """The file is not a GGUF file that an engine could load."""

    reason = "NotGGUF"


class DigestMismatchError(WeightsError):
    """The bytes are not the ones that `spec.sha256` asks for."""

    reason = "DigestMismatch"

    def __init__(self, message: str) -> None:
        super().__init__(message, field="spec.sha256")


class FetchError(WorldError):
    """The disk or the network got in the way; the same fetch may succeed later."""

    reason: ClassVar[str] = "FetchFailed"
