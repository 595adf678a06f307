"""No word of the tree leads to another project's image, chart or package as if it were ours: none is published."""

import re
import subprocess

from supply.lock import ROOT

IMAGE = re.compile(r"(?:[\w-]+\.)+(?:io|com|org)(?::\d+)?/[\w./-]*llmkube[\w./-]*", re.IGNORECASE)
PACKAGE = re.compile(
    r"(?:pipx?|uv pip|uv tool) install\s+(?:-\S+\s+)*['\"]?(llmkube(?:-metal-agent)?)(?![\w/-])", re.IGNORECASE
)
CHART = re.compile(r"helm repo add \w+ (\S+)|oci://(\w\S*(?:llmkube|chart)\S*)")
OTHERS = re.compile("defilan" + "tech", re.IGNORECASE)  # the organisation of the project that this one was made after

OURS = re.compile(r"(?:[\w-]+\.)*example\.(?:com|org)(?::\d+)?/|127\.0\.0\.1|\{|\$|REGISTRY")
"""Names that are reserved for examples, this machine, and words that a reader replaces."""

NAMES = re.compile(r"inference\.llmkube\.dev/|llmkube\.io/v1alpha1|k8s\.io/v1/")
"""Groups of an API, not hosts of ours."""


def texts():
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        path = ROOT / name
        if path.is_file() and path.suffix not in (".gguf", ".webp", ".bin"):
            yield name, path.read_text(encoding="utf-8", errors="ignore")


def foreign(text):
    """Return every place that the text gives out as ours and that is not."""
    found = OTHERS.findall(text)
    ours = "\n".join(line for line in text.splitlines() if "llmkube" in line.lower())  # the pattern is slow
    found += [each for each in IMAGE.findall(ours) if not OURS.match(each) and not NAMES.search(each)]
    found += [each for pair in CHART.findall(text) for each in pair if each and not re.search(OURS, each)]
    return found + [f"pip install {each}" for each in PACKAGE.findall(text)]


def test_nothing_leads_to_a_place_of_others():
    """An image, a chart's repository or a package of our name is an example's, or does not exist yet."""
    assert [f"{name}: {each}" for name, text in texts() for each in foreign(text)] == []


def test_a_place_of_others_is_found():
    """The patterns of this test match texts that were once in these pages."""
    them = "defilan" + "tech"
    for text in (
        f"repository: {them}/x",
        f"helm repo add {'llmkube'} https://charts.somewhere.io/x",
        "oci:" + "//ghcr.io/someone/charts",
        f"image: ghcr.io/someone/{'llmkube'}:1",
        f"pip install {'llmkube'}",
        f"pip install '{'llmkube'}[llama]'",
        f"uv tool install --upgrade {'llmkube'}",
    ):
        assert foreign(text), text
    for text in (
        "pip install ./examples/x",
        "registry.example.com/llmkube:1",
        "helm repo add llmkube http://127.0.0.1:8879",
    ):
        assert not foreign(text), text
