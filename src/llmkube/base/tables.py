"""Load the TOML tables that are packaged beside the modules that use them."""

import importlib.resources
import tomllib
from typing import Any


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return the contents of a TOML file.

    Args:
        package: The package that contains the file; callers pass `__package__`.
        name: File name without `.toml`.
    """
    return tomllib.loads(importlib.resources.files(package).joinpath(f"{name}.toml").read_text("utf-8"))
