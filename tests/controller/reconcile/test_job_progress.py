"""A download's progress is in the Model's status, in steps, while the pod reports it."""

import json
import math

import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import open_pods
from llmkube.controller.reconcile import pod_polling
from llmkube.controller.reconcile.pod_polling import QUERY_INTERVAL_SECONDS, read_percent
from llmkube.k8s.workloads import Job


def words(done, total=1000, *, file=1, files=1, stage="downloading", **more):
    return json.dumps({"file": file, "files": files, "stage": stage, "doneBytes": done, "totalBytes": total, **more})


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        (words(0), 0),
        (words(499), 45),
        (words(1000), 100),
        (words(500, file=2, files=2), 75),
        (words(0, 0), None),
        (words(0, stage="waiting"), None),
        (words(1001), None),
        (words(-1), None),
        (words(1, file=3, files=2), None),
        (words(1, file="x"), None),
        (words(None), None),
        (words(math.inf), None),
        (words(math.nan), None),
        ("[" * 100_000, None),
        ("[]", None),
        ("", None),
        ("<html>", None),
    ],
)
def test_a_percentage_is_read_or_nothing_is(text, percent):
    """Whole steps of five, of all files; a stranger's pod can at most remove the number."""
    assert read_percent(text) == percent


@pytest.fixture
def engine(monkeypatch):
    """Pods that answer with this text; `asked` are the addresses."""
    pods = {"text": words(0), "asked": []}

    async def read(url):
        await trio.lowlevel.checkpoint()
        pods["asked"].append(url)
        return pods["text"]

    monkeypatch.setattr(pod_polling, "read_text", read)
    return pods


async def start(hands, ip="10.1.2.3"):
    await hands.start()
    [job] = (await hands.client.list(Job, namespace="ml")).items
    await hands.job_pod(job, {"running": {}}, "Running", podIP=ip)
    await trio.sleep(SETTLED)
    return job


async def message(hands):
    conditions = (await hands.cluster.model()).status.conditions
    return next(one.message for one in conditions if one.type == "Progressing")


async def test_the_model_reports_progress(autojump_clock, engine):
    """The message has each step within ten seconds; nothing is written between steps, and at the end it is removed."""
    async with open_pods() as hands:
        job = await start(hands)
        await trio.sleep(QUERY_INTERVAL_SECONDS)
        assert (await message(hands)).endswith("is fetching it: 0 %")
        engine["text"] = words(430)
        await trio.sleep(QUERY_INTERVAL_SECONDS + SETTLED)
        assert (await message(hands)).endswith("is fetching it: 40 %")
        assert set(engine["asked"]) == {"http://10.1.2.3:8082/progress"}
        assert await hands.model_where() == "Downloading/DownloadStarted"
        writes = len(hands.cluster.writes)
        engine["text"] = words(449)
        await trio.sleep(600)
        assert len(hands.cluster.writes) == writes
        await hands.finish_job(job=job)
        await trio.sleep(SETTLED)
        assert "%" not in await message(hands)
        asked = len(engine["asked"])
        await trio.sleep(600)
        assert len(engine["asked"]) == asked


@pytest.mark.parametrize(
    ("ip", "text"),
    [("", words(500)), ("10.1.2.3", ""), ("10.1.2.3", words(math.inf)), ("10.1.2.3", "[" * 100_000)],
)
async def test_a_pod_without_progress_costs_only_the_number(autojump_clock, engine, ip, text):
    """Without an address or a valid response the Model is still Downloading, and nothing is written again."""
    engine["text"] = text
    async with open_pods() as hands:
        await start(hands, ip)
        assert await hands.model_where() == "Downloading/DownloadStarted"
        writes = len(hands.cluster.writes)
        await trio.sleep(600)
        assert len(hands.cluster.writes) == writes
        assert "%" not in await message(hands)
