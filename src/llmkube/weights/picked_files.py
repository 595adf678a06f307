"""`spec.files` names what the engine is given of a source that holds several files."""

from collections.abc import Sequence

from llmkube.weights.errors import FileSetError, SourceError
from llmkube.weights.source import BucketFile, HubFile, HubRepository, ImageSource, Source


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
