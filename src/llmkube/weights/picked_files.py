"""`spec.files` names what the engine is given of a source that holds several files."""

from collections.abc import Sequence
from typing import Final

from llmkube.weights.errors import FileSetError, SourceError
from llmkube.weights.source import (
    BucketFile,
    Given,
    HubFile,
    HubFolder,
    HubRepository,
    ImageSource,
    LocalFile,
    LocalFolder,
    Source,
)

FOLDER_FORMATS: Final = frozenset({"mlx", "safetensors"})
"""The values of `spec.format` whose engines are given a folder, and not a file."""


def given_to_engine(source: Source, files: Sequence[str], weights_format: str) -> Given:
    """Return what an engine of a host is given of a source: a file, or for formats that are folders a folder.

    Args:
        source: What `spec.source` names.
        files: `spec.files`.
        weights_format: `spec.format`.

    Raises:
        FileSetError: As `pick`, or the source is no folder with files of that format.
    """
    if weights_format not in FOLDER_FORMATS:
        return pick(source, files)
    if files:
        raise FileSetError(f"a host fetches all files of a model in {weights_format}: leave spec.files out")
    if isinstance(source, LocalFile):
        return LocalFolder(source.path)
    if isinstance(source, HubRepository) and not source.quantization:
        return HubFolder(source.name, source.revision)
    raise SourceError(
        f"spec.source names no folder of {weights_format} for a host: write hf://ORG/REPO[@REVISION], or the absolute "
        "path of a folder below one that the host's owner lists (--allow-local-sources)"
    )


def pick(source: Source, files: Sequence[str]) -> Source:
    """Return the file that `spec.files` picks from a repository or a bucket; the source itself if it picks nothing.

    Args:
        source: What `spec.source` names.
        files: The first is the one that the engine is given. More of them may only be parts of the same split model:
            an engine on a host has no use for others.

    Raises:
        FileSetError: The source is neither, or has no such files, or they do not belong together.
    """
    if not files:
        return source
    if isinstance(source, ImageSource):
        return _picked_from_image(source, files)
    if not isinstance(source, HubRepository | BucketFile):
        raise FileSetError(
            "picks files from a Hugging Face repository, a folder of a bucket or an image, but spec.source names none; "
            "write spec.source as ORG/REPO, s3://BUCKET/FOLDER or oci://REGISTRY/REPOSITORY, or leave spec.files out"
        )
    chosen = _file_of(source, files[0])
    strange = [file for file in files[1:] if _file_of(source, file) != chosen]  # any part is named by the first
    if strange:
        raise FileSetError(
            f"a host fetches the parts of one model, and {strange[0]!r} is no part of {files[0]!r}; leave it out"
        )
    return chosen


def _file_of(source: HubRepository | BucketFile, file: str) -> HubFile | BucketFile:
    try:
        return source.file(file)
    except SourceError as exc:
        raise FileSetError(f"{file!r} names no .gguf file in a repository; patterns do not work") from exc


def _picked_from_image(source: ImageSource, files: Sequence[str]) -> ImageSource:
    try:
        return source.pick(files[0])
    except SourceError as exc:
        raise FileSetError(f"{exc}; patterns do not work") from exc
