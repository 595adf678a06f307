"""A token of our own making stays in a private file, so that those who have it need no other one after a restart."""

import secrets
from pathlib import Path

from llmkube.base.private_files import write_private


def ensure_token(path: Path) -> str:
    """Return the token kept at `path`; the first call draws 256 random bits for it."""
    if path.exists():
        token = path.read_text(encoding="ascii").strip()
        if token:
            return token
    token = secrets.token_urlsafe(32)
    write_private(path, token.encode("ascii"))
    return token
