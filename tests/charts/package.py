"""Implement `make chart IMAGE=… CPU_ENGINE=…`: package the chart with its images by digest, and index the folder.

The chart of the tree names no image, since none is published; the package of whoever built them names theirs, so that
`helm install` needs no value; the folder is a Helm repository. Standard library and helm.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if __package__ is None or not __package__:  # run as a script: tests/ is where both rooms are
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from charts.chart_tools import COMMAND, find_tool

CHART = Path(__file__).resolve().parents[2] / "charts" / "llmkube"

_IMAGE = re.compile(
    r"(?:(?P<registry>localhost(?::\d+)?|[\w-]+(?:\.[\w-]+)+(?::\d+)?|[\w-]+:\d+)/)?"
    r"(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)(?::(?P<tag>\w[\w.-]{0,127}))?@(?P<digest>sha256:[a-f0-9]{64})"
)


class PackageError(Exception):
    """The chart cannot be packaged; the message says why and what would help."""


IMAGE = ("IMAGE", "image")
CPU_ENGINE = ("CPU_ENGINE", "workloads.cpuEngine")
"""Variables of `make chart`, and the values that hold their image."""


def image_values(image: str, variable: str = IMAGE[0]) -> dict[str, str]:
    """Return the chart's values for an image with a digest: registry, repository, tag and digest, empty ones included.

    Raises:
        PackageError: It is no image, or one without a digest, which may be another one tomorrow.
    """
    found = _IMAGE.fullmatch(image)
    if not found:
        raise PackageError(
            f"{variable}={image} is not REPOSITORY@sha256:…; `docker buildx imagetools inspect REPOSITORY:TAG` prints "
            "the digest of an image that was pushed"
        )
    return {key: value or "" for key, value in found.groupdict().items()}


def with_image(values: str, image: str, place: tuple[str, str] = IMAGE) -> str:
    """Return values.yaml with that image in it, and everything else, comments included, as it was.

    Raises:
        PackageError: The image is none, or the text has no such value.
    """
    variable, path = place
    *_, name = path.split(".")
    indent = "  " * path.count(".")
    head, start, rest = values.partition(f"\n{indent}{name}:\n")
    block = re.match(rf"(?:{indent}  .*\n)*", rest)
    assert block is not None  # it matches nothing as well
    text = block[0]
    for key, value in image_values(image, variable).items():
        text, count = re.subn(rf"(?m)^{indent}  {key}: .*$", f'{indent}  {key}: "{value}"', text)
        if count != 1:
            raise PackageError(f"values.yaml has no {path}.{key}")
    return f"{head}{start}{text}{rest[block.end() :]}"


def package(target: Path, image: str = "", cpu_engine: str = "") -> None:
    """Write the package and the index into a folder, as a web server can serve it.

    Raises:
        PackageError: An image is none, or helm is missing or fails.
    """
    helm = find_tool("helm")
    if not helm:
        raise PackageError(f"there is no helm 3: `{COMMAND} helm` builds it, or put it on PATH")
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="llmkube-chart-") as scratch:
        chart = Path(scratch) / CHART.name
        shutil.copytree(CHART, chart)
        values = chart / "values.yaml"
        for place, given in ((IMAGE, image), (CPU_ENGINE, cpu_engine)):
            if given:
                values.write_text(with_image(values.read_text(), given, place))
        _run([helm, "package", "--destination", str(target), str(chart)])
    _run([helm, "repo", "index", str(target)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackageError(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


def main() -> int:
    """Package the chart; 1 if that cannot be, with the reason on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", type=Path, help="folder of the repository")
    parser.add_argument("image", nargs="?", default="", help="REPOSITORY@sha256:…")
    parser.add_argument("cpu_engine", nargs="?", default="", help="the image of the target llama-server, likewise")
    arguments = parser.parse_args()
    try:
        package(arguments.target, arguments.image, arguments.cpu_engine)
    except PackageError as error:
        _log(str(error))
        return 1
    _log(f"{arguments.target}: {arguments.image or 'names no image: helm install needs --set image.repository=…'}")
    if arguments.image and not arguments.cpu_engine:
        _log("CPU_ENGINE names no image for services on CPUs: they get the image's name with -llama after it, by tag")
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"chart: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
