"""Machines with GPUs, played from recorded text (`devices/*.txt`)."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "devices"


def listing(name: str) -> str:
    """Return what `llama-server --list-devices` printed on a machine."""
    return (FOLDER / f"{name}.txt").read_text().partition("\n$\n")[2]


def plant(name: str, root: Path) -> Path:
    """Write the files of a machine's system below a folder, and return the folder."""
    text = (FOLDER / f"{name}.txt").read_text().partition("\n$\n")[0] + "\n"
    for path, content in re.findall(r"^== (\S+)\n((?:(?!== ).*\n)*)", text, re.MULTILINE):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root
