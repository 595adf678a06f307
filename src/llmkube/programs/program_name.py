"""How this program is called, so that what a user reads can be pasted: a name that is on PATH, or a path."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

_NAME: Final = "llmkube"
_COMMAND: Final = re.compile(rf"(?<=`){_NAME}(?= )")


def program_name(argv0: str | None = None) -> str:
    """Return `llmkube` if that is this program in the shell, else the path by which it was called."""
    called = sys.argv[0] if argv0 is None else argv0
    if Path(called).name != _NAME:  # python -m llmkube, or a test
        return _NAME
    found = shutil.which(_NAME)
    on_path = found is not None and Path(found).absolute() == Path(shutil.which(called) or called).absolute()
    return _NAME if on_path or os.sep not in called else called


def runnable(text: str) -> str:
    """Return a text whose commands in backquotes can be pasted."""
    name = program_name()
    return text if name == _NAME else _COMMAND.sub(lambda _: shlex.quote(name), text)
