"""Print what LLMKube pins: packages with their versions and the files that pin them, and images of engines.

`make pins` runs this module, for instance to compare the list with an advisory. It needs no network.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

from llmkube.runtimes.registry import IMAGES

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==(\S+)", re.MULTILINE)


def pins(folder: Path = REQUIREMENTS) -> dict[str, list[str]]:
    """Return the files that pin each `package version`, sorted."""
    found = defaultdict(list)
    for file in sorted(folder.glob("*.txt")):
        for name, version in _PIN.findall(file.read_text(encoding="utf-8")):
            found[f"{name} {version}"].append(file.stem)
    return dict(sorted(found.items()))


def main() -> None:
    """Print one line for each package and each image."""
    lines = [f"{package:<40} {' '.join(files)}" for package, files in pins().items()]
    lines += [f"{image:<60} image of {runtime}" for runtime, image in sorted(IMAGES.items())]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
