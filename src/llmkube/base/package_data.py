"""Load the tables and texts that are packaged with the modules that use them."""

import importlib.resources
import tomllib
from typing import Any


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Args:
        package: The package that contains the file; callers pass `__package__`.
        name: File name without `.toml`.
    """
    return tomllib.loads(read_text(package, f"{name}.toml"))


def read_text(package: str, file: str) -> str:
    """Return the contents of a text file of a package; callers pass `__package__`."""
    return importlib.resources.files(package).joinpath(file).read_text("utf-8")
