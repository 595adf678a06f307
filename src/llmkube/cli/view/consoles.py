"""The terminal as rich draws on it; with NO_COLOR set, in no style at all: no colour, nothing bold, nothing dim."""

import os
from typing import Any

from rich.console import Console


def open_console(**options: Any) -> Console:
    """Return a console with these options of rich's."""
    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    return Console(**options)
