"""Tools that check the chart and the workflows, and sign a release, for machines without them.

`helm`, `actionlint` and `cosign` are built from their published Go modules. Standard library only, as `go_programs.py`,
whose Go and whose cache this shares:

    ${LLMKUBE_ENVTEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/llmkube/envtest}/chart-tools-<version>/{helm,promtool,…}

A tool on PATH is used as it is, except a helm of another major version. promtool comes out of Debian's
`prometheus` package (one second, and no installation), so it needs apt; elsewhere it has to be on PATH.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

if __package__ is None or not __package__:  # run as a script: tests/ is where both rooms are
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from debian_packages import PackageError, unpack
from go_programs import BuildError, Log, cache_root, find_go, run

TOOLS = ("helm", "promtool")
"""Tools that tests need; the others are built only if they are named."""
HELM_VERSION = "v3.22.0"
MODULES = {
    "helm": f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}",
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12",
    "cosign": "github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3",
}
HELM_KUBERNETES = ("1", "37")
"""Kubernetes version that helm assumes when it renders without a cluster: that of its own libraries."""

COMMAND = "python tests/charts/chart_tools.py"
"""Command that builds the missing tools."""


def tools_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which the tools are, or will be."""
    return cache_root(environ) / f"chart-tools-{HELM_VERSION}"


def tool_path(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return where a tool is once it is built; a new version of its module gets another path."""
    version = MODULES.get(name, "").rpartition("@")[2]
    return tools_dir(environ) / (name if version in ("", HELM_VERSION) else f"{name}-{version}")


def find_tool(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of a tool: the one that was built here, else the one on PATH; empty without one."""
    built = tool_path(name, environ)
    if os.access(built, os.X_OK):
        return str(built)
    found = shutil.which(name, path=environ.get("PATH")) or ""
    return "" if found and name == "helm" and not _is_helm_3(found) else found


def build(names: Sequence[str], log: Log, environ: Mapping[str, str] = os.environ) -> None:
    """Get what is missing.

    Raises:
        BuildError: A tool is not available here; the message says what would help.
    """
    for name in names:
        if found := find_tool(name, environ):
            log(f"{name}: {found}")
            continue
        target = tool_path(name, environ)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
            log(f"{name} ...")
            made = _build_go(name, Path(scratch), log, environ) if name in MODULES else _unpack(Path(scratch), environ)
            made.chmod(0o755)
            made.replace(target)  # a rename: a build that is killed leaves no half program
        log(f"{name}: {target}")


def _is_helm_3(program: str) -> bool:
    done = subprocess.run([program, "version", "--short"], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.startswith("v3.")


def _build_go(name: str, scratch: Path, log: Log, environ: Mapping[str, str]) -> Path:
    go, env = find_go(log, environ)
    major, minor = HELM_KUBERNETES
    stamps = {
        "helm.sh/helm/v3/internal/version.version": HELM_VERSION,
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": major,
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": minor,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": major,
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": minor,
    }  # of variables that the others do not have
    ldflags = " ".join(("-s", "-w", *(f"-X {variable}={value}" for variable, value in stamps.items())))
    # `go install` of a version asks the checksum database about every module, so no go.sum of ours is needed
    run(
        [go, "install", "-trimpath", "-ldflags", ldflags, MODULES[name]],
        cwd=scratch,
        env={**env, "GOBIN": str(scratch)},
    )
    return scratch / name


def _unpack(scratch: Path, environ: Mapping[str, str]) -> Path:
    try:
        unpack("prometheus", scratch, environ)
    except PackageError as error:
        raise BuildError(f"no promtool on PATH: install it, or make this work: {error}") from error
    return scratch / "usr" / "bin" / "promtool"


def main() -> int:
    """Get what was asked for; what is printed on stdout is one path per tool, everything else goes to stderr."""
    known = {*TOOLS, *MODULES}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "tools", nargs="*", metavar="tool", help=f"of {', '.join(sorted(known))}; by default {', '.join(TOOLS)}"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.tools) - known)
    if unknown:
        parser.error(f"no tool {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    os.nice(10)  # the linker is not urgent
    wanted = arguments.tools or TOOLS
    try:
        build(wanted, _log)
    except BuildError as error:
        _log(str(error))
        return 1
    sys.stdout.writelines(f"{find_tool(name)}\n" for name in wanted)
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"chart tools: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
