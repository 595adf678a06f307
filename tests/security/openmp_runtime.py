"""Find libomp, the library that Homebrew's ggml is linked with."""

from pathlib import Path

from debian_packages import PackageError, unpack

INSTALLED = (
    "usr/lib/llvm-*/lib/libomp.so*",
    "usr/lib/*/libomp.so*",
    "usr/lib64/libomp.so*",
    "opt/homebrew/opt/libomp/lib/libomp.dylib",
    "usr/local/opt/libomp/lib/libomp.dylib",
)
INSTALL_HINT = "no libomp here: install libomp5 (Debian) or libomp (Homebrew)"


def find_libomp(folder: Path) -> Path | None:
    """Return the path of libomp: an installed one, else Debian's package, unpacked into `folder`."""
    for pattern in INSTALLED:
        if found := sorted(Path("/").glob(pattern)):
            return found[0]
    try:
        unpack("libomp5", folder, dependencies=True)
    except PackageError:
        return None
    return next((path for path in sorted(folder.rglob("libomp*.so.5")) if path.is_file()), None)
