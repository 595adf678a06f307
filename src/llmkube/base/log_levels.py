"""The levels of log lines by name. Apart from `log`: command lines name them, and most never log."""

import logging
from collections.abc import Mapping

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
