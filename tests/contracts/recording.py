"""Record a real kube-apiserver's answers to the script, so that the embedded server can be compared everywhere.

`python -m contracts.recording KUBECONFIG` (in `tests/`) asks a real server and writes the file again; the envtest suite
fails when the file no longer says what the real server says.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from contracts.chapters import CHAPTERS, crds
from contracts.lab import install
from contracts.playing import play
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.auth.transport import AuthTransport

RECORDED: Final = Path(__file__).with_name("data") / "kube-apiserver.jsonl"


def load() -> tuple[str, Mapping[str, Sequence[Mapping[str, Any]]]]:
    """Return the version of the server that was asked, and its answers by chapter."""
    head, *lines = map(json.loads, RECORDED.read_text().splitlines())
    answers: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        answers.setdefault(line.pop("chapter"), []).append(line)
    return head["version"], answers


async def _record(kubeconfig: Path) -> None:
    config = load_config(kubeconfig)
    async with httpx.AsyncClient(transport=AuthTransport(config), base_url=config.server, timeout=30) as http:
        version = (await http.get("/version")).json()["gitVersion"]
        await install(http, *crds())
        lines: list[dict[str, Any]] = [{"version": version}]
        for chapter in CHAPTERS:
            answers = await play(http, chapter)
            lines += [{"chapter": chapter.__name__, **answer.to_json()} for answer in answers]
    text = "".join(f"{json.dumps(line, ensure_ascii=False, sort_keys=True)}\n" for line in lines)
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(text)
    sys.stdout.write(f"{len(lines) - 1} answers of {version} in {RECORDED}\n")


if __name__ == "__main__":
    trio.run(_record, Path(sys.argv[1]))
