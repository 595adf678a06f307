"""Debian's Chromium in headless mode, unpacked once into the test cache: a real browser for the tests."""

import shutil
import tempfile
from pathlib import Path

import trio

from debian_packages import PackageError, unpack
from go_programs import cache_root

PACKAGE = "chromium-headless-shell"
INSTALL_HINT = f"no Chromium here: install {PACKAGE} (Debian), or let apt-get fetch it"


def find_chromium() -> list[str] | None:
    """Return the command that starts Chromium: an installed one, else Debian's package; None without apt."""
    if installed := shutil.which(PACKAGE):
        return [installed]
    root = cache_root() / PACKAGE
    if not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{PACKAGE}-", dir=root.parent) as made:
            folder = Path(made, "root")
            folder.mkdir()
            try:
                unpack(PACKAGE, folder, dependencies=True)
            except PackageError:
                return None
            folder.rename(root)
    program = next(path for path in root.rglob(PACKAGE) if path.is_file() and path.stat().st_mode & 0o100)
    libraries = sorted({str(path.parent) for path in root.rglob("*.so*") if "chromium" not in path.parts})
    return ["env", f"LD_LIBRARY_PATH={':'.join(libraries)}", str(program)]


async def show(command: list[str], url: str, profile: Path, *, names: str = "") -> None:
    """Show a page until cancelled.

    Args:
        command: What `find_chromium` returned.
        url: The page's address.
        profile: Folder for the browser's profile.
        names: Host resolver rules, such as `MAP evil.example:80 127.0.0.1:4000`, in place of DNS.
    """
    # No sandbox: it needs rights that root in a container lacks, and the test wrote the page.
    flags = ["--no-sandbox", "--disable-gpu", "--headless", f"--user-data-dir={profile}", "--remote-debugging-port=0"]
    await trio.run_process([*command, *flags, f"--host-resolver-rules={names}", url], capture_stderr=True)
