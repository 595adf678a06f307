"""Tables of facts that lie as TOML beside the module that reads them."""

import importlib.resources
import tomllib
from typing import Any


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return what a TOML file of a package (`__package__`) holds."""
    return tomllib.loads(importlib.resources.files(package).joinpath(f"{name}.toml").read_text("utf-8"))
