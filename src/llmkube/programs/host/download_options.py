"""What the user may say about downloads, checked before anything starts."""

from pathlib import Path
from typing import Protocol, TypedDict

from llmkube.base.errors import UserError
from llmkube.supervisor.credentials import read_token_file
from llmkube.weights.address_policy import Network, parse_networks
from llmkube.weights.download.hugging_face import parse_endpoint
from llmkube.weights.errors import SourceError
from llmkube.weights.ollama_model import AllowedModels


class DownloadConfig(Protocol):
    """Settings that more than one program has."""

    @property
    def allow_private_sources(self) -> tuple[str, ...]:
        """Networks as the user wrote them."""
        ...

    @property
    def allow_local_sources(self) -> tuple[str, ...] | None:
        """Folders as the user wrote them."""
        ...

    @property
    def allow_ollama_sources(self) -> tuple[str, ...]:
        """Names of models as the user wrote them."""
        ...

    @property
    def s3_env_auth(self) -> bool:
        """Whether Models may use the environment's AWS keys."""
        ...

    @property
    def hf_token_file(self) -> Path | None:
        """Where the token is."""
        ...

    @property
    def hub_endpoint(self) -> str:
        """Where the hub is."""
        ...


class DownloadSettings(TypedDict):
    """The same, as `AgentSettings` takes it."""

    private_sources: tuple[Network, ...]
    local_sources: tuple[Path, ...]
    ollama_sources: AllowedModels
    s3_env_auth: bool
    hub_token_file: Path | None
    hub_endpoint: str


def download_settings(config: DownloadConfig, unlisted: tuple[Path, ...] = ()) -> DownloadSettings:
    """Read the settings; a token file that is missing now would otherwise be noticed by the first gated download.

    Args:
        config: The program's.
        unlisted: The folders of local sources where the user has listed none.

    Raises:
        UserError: One of them cannot be used; the sentence names its flag.
    """
    try:
        parse_endpoint(config.hub_endpoint)
    except SourceError as exc:
        raise UserError(str(exc).partition(": ")[2], field="--hub-endpoint") from exc
    try:
        ollama = AllowedModels.of(config.allow_ollama_sources)
    except ValueError as exc:
        raise UserError(str(exc), field="--allow-ollama-sources") from exc
    if config.hf_token_file is not None:
        read_token_file(config.hf_token_file)
    return DownloadSettings(
        private_sources=parse_networks(config.allow_private_sources),
        local_sources=unlisted if config.allow_local_sources is None else _folders(config.allow_local_sources),
        ollama_sources=ollama,
        s3_env_auth=config.s3_env_auth,
        hub_token_file=None if config.hf_token_file is None else config.hf_token_file.absolute(),
        hub_endpoint=config.hub_endpoint,
    )


def own_folders(store: Path) -> tuple[Path, ...]:
    """Return the folders whose files Models may name where one person owns the machine and writes the Models."""
    home = Path.home()
    return (store,) if home == Path(home.anchor) else (home, store)  # services have the root as their home


def _folders(texts: tuple[str, ...]) -> tuple[Path, ...]:
    folders = []
    for text in texts:
        try:
            folder = Path(text).expanduser()
        except RuntimeError as exc:
            raise UserError(f"{text!r}: {exc}", field="--allow-local-sources") from exc
        if not folder.is_absolute():
            raise UserError(f"{text!r} is not an absolute path", field="--allow-local-sources")
        folders.append(folder)
    return tuple(folders)
