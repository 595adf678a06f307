"""Both servers are asked the same, now: the script's answers, and random sequences of operations."""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.chapters import CHAPTERS, crds
from contracts.compare import differences, without_chance
from contracts.drawn import objects
from contracts.lab import install
from contracts.nouns import Chapter
from contracts.playing import LEFT_HALF_WAY, open_embedded, open_session, play
from contracts.recording import load
from contracts.script_kinds import API_VERSION, manifest
from contracts.sequences import SEQUENCES
from contracts.session import JSON, Operation
from lengths import DIFFERENTIAL_SEQUENCES, SOAK
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.auth.transport import AuthTransport

pytestmark = [pytest.mark.envtest, *LEFT_HALF_WAY]

DRY: Final = {"dryRun": "All"}
DRAWN: Final = settings(
    max_examples=DIFFERENTIAL_SEQUENCES, derandomize=not SOAK, suppress_health_check=list(HealthCheck)
)


@pytest.fixture
async def real(real_kubeconfig: Path) -> AsyncGenerator[httpx.AsyncClient, None]:
    """A real server with the script's kinds."""
    config = load_config(real_kubeconfig)
    async with httpx.AsyncClient(transport=AuthTransport(config), base_url=config.server, timeout=30) as http:
        await install(http, *crds())
        yield http


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.__name__.removeprefix("chapter_"))
async def test_both_servers_answer_the_script_alike(real: httpx.AsyncClient, chapter: Chapter):
    """A chapter's answers are equal field by field, and the recording still says what the real server says."""
    theirs = [answer.to_json() for answer in await play(real, chapter)]
    async with open_embedded() as http:
        ours = [answer.to_json() for answer in await play(http, chapter)]
    assert not (found := differences(theirs, ours)), "\n".join(["", *found])
    version, recorded = load()
    if (await real.get("/version")).json()["gitVersion"] == version:
        stale = differences(theirs, recorded[chapter.__name__])
        assert not stale, "\n".join(["record it again, see contracts/recording.py:", *stale])


@DRAWN
@given(SEQUENCES)
async def test_both_servers_answer_random_sequences_alike(real_kubeconfig: Path, sequence: Sequence[Operation]):
    """Whatever is asked in whatever order, both servers say the same."""
    config = load_config(real_kubeconfig)
    async with httpx.AsyncClient(transport=AuthTransport(config), base_url=config.server, timeout=30) as http:
        await install(http, *crds())
        theirs = await _answers(http, sequence)
    async with open_embedded() as http:
        ours = await _answers(http, sequence)
    assert not (found := differences(theirs, ours)), "\n".join(["", *found])


@DRAWN
@given(st.lists(objects(), min_size=8, max_size=8))
async def test_both_servers_judge_drawn_specs_alike(real_kubeconfig: Path, drawn: Sequence[tuple[str, Any]]):
    """For valid and invalid specs of our kinds the embedded server gives the real server's answer."""
    posts = [
        Operation("POST", f"/apis/{API_VERSION}/namespaces/{{ns}}/{kind.lower()}s", manifest(kind, spec), JSON, DRY)
        for kind, spec in drawn
    ]
    config = load_config(real_kubeconfig)
    async with httpx.AsyncClient(transport=AuthTransport(config), base_url=config.server, timeout=30) as http:
        await install(http, *crds())
        theirs = await _answers(http, posts)
    async with open_embedded() as http:
        ours = await _answers(http, posts)
    assert not (found := differences(theirs, ours)), "\n".join(["", *found])


async def _answers(http: httpx.AsyncClient, sequence: Sequence[Operation]) -> list[dict[str, object]]:
    async with open_session(http) as session:
        for operation in sequence:
            await session.send(operation)
        return [without_chance(answer.to_json()) for answer in session.answers]
