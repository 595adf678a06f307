"""Small private files are replaced as a whole, and nobody else on the machine can read them."""

import os
import tempfile
from pathlib import Path


def write_private(path: Path, content: str | bytes, *, lasting: bool = True) -> None:
    """Replace a file, mode 0600: whoever reads it, or finds it after a crash, has all of the old one or of the new one.

    Args:
        path: The file; its folder is there.
        content: Text is written as UTF-8.
        lasting: Whether that holds after a power cut as well, which costs a sync: milliseconds.

    Raises:
        OSError: The disk does not take it; the old file is still there.
    """
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # O_EXCL and 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise
