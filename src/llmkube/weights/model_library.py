"""Models that another program of this host keeps: it pulls them into its own store, and serves them from there."""

from typing import Protocol

from llmkube.weights.download.progress import OnProgress
from llmkube.weights.formats.gguf import GGUFFacts
from llmkube.weights.ollama_model import OllamaModel
from llmkube.weights.store.blobs import WeightsFile


class ModelLibrary(Protocol):
    """The program that keeps them."""

    async def fetch(self, source: OllamaModel, progress: OnProgress) -> tuple[WeightsFile, GGUFFacts]:
        """Have it pull a model that it does not have, and return what it says of the model's file.

        Raises:
            WeightsError: There is no such model, or it cannot be served here; says what to do.
            FetchError: The program does not answer, or has not pulled it.
        """
        ...

    async def has(self, source: OllamaModel) -> bool:
        """Whether it has the model already; it has not if it does not answer."""
        ...

    async def keeps(self, identity: str) -> bool:
        """Whether a file that `fetch` has returned is still the one of its model."""
        ...
