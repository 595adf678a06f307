"""Files that the user of `llmkube up` names on the command line: that user may serve them, and may know what is wrong.

Authors of objects may do neither: they name files below allowed folders, and learn only that one cannot be served.
"""

from pathlib import Path

import click

from llmkube.cli.target_cluster import Cluster
from llmkube.cli.view.output import wrapped
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.reasons import Reason


def allow_folder(cluster: Cluster, source: str) -> None:
    """Let this user's `llmkube up` serve files in the folder of a local source; other sources change nothing."""
    from llmkube.programs.host_settings import default_source_folders  # noqa: PLC0415 - only for local files
    from llmkube.weights.store.local_sources import RECORDED_FOLDERS, record_folders, recorded_folders  # noqa: PLC0415

    path = Path(source)
    if cluster.up_dir is None or not path.is_absolute() or not path.exists():
        return
    file = cluster.up_dir / RECORDED_FOLDERS
    allowed = {*default_source_folders(cluster.up_dir / "store"), *recorded_folders(file)}
    needed = {each if each.is_dir() else each.parent for each in (path, path.resolve())} - {Path(path.anchor)}
    if missing := sorted(each for each in needed if allowed.isdisjoint((each, *each.parents))):
        record_folders(file, missing)
        note = f"Models may now name files below {' and '.join(map(str, missing))} (recorded in {file})"
        click.echo(wrapped(note, err=True), err=True)


def cause_of(cluster: Cluster, model: Model | None, reason: str) -> str:
    """Return why a local file cannot be served; "" for another reason, or if another user runs the `llmkube up`."""
    from llmkube.weights.errors import FetchError, WeightsError, WeightsNotFoundError  # noqa: PLC0415 - see above
    from llmkube.weights.formats.gguf import read_header  # noqa: PLC0415 - see above
    from llmkube.weights.store.local_sources import LocalSources  # noqa: PLC0415 - see above

    if cluster.up_dir is None or model is None or reason != Reason.FILE_NOT_FOUND:
        return ""
    path = Path(model.spec.source.removeprefix("file://"))
    if not path.is_absolute():  # the file of an adapter or of a draft model is in the message of the condition
        return ""
    try:
        if path.is_file():
            read_header(path)  # the message of `llmkube inspect`, which says what the file is instead
        LocalSources((path.parent,)).admit(path)
    except WeightsNotFoundError as exc:
        return f"{path}: {exc.detail}"
    except (WeightsError, FetchError) as exc:
        return str(exc)
    return ""
