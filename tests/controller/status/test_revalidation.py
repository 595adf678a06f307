"""A followed source is checked again, and only a change replaces the pods."""

import json

import pytest
import trio

from controller.cluster import SETTLED
from controller.objects import NOW
from controller.podcluster import open_pods
from controller.podobjects import FETCHED, SETTINGS, SHA, cluster_model, fetch_pod
from llmkube.controller.render.model_sources import cache_key
from llmkube.controller.status.model_status import JobFacts, derive_supplied_status, revalidate_in_seconds
from llmkube.controller.status.supply import Supply
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import Deployment, Job

JOB = Supply("job")
HOUR = SETTINGS.look_seconds
OTHER = "cd" * 32


def termination_message(version: str = "v1", **more: str) -> str:
    return json.dumps({**json.loads(FETCHED), "path": f"{version}/model.gguf", "etag": f'"{version}"', **more})


def job(kind: str = "Complete", at: str = "2025-06-01T11:00:00Z") -> Job:
    held = [{"type": kind, "status": "True", "lastTransitionTime": at}] if kind else []
    return decode(Job, {"metadata": {"name": "phi-0", "namespace": "ml"}, "status": {"conditions": held}})


def followed(**status):
    key = cache_key(cluster_model(refreshPolicy="OnChange").spec)
    there = {"cacheKey": key, "path": f"/models/{key}/v1/model.gguf", "size": "4.5 GiB", "sha256": SHA}
    return cluster_model(refreshPolicy="OnChange", status={**there, **status})


async def jobs(hands) -> list[str]:
    return [one.metadata.uid for one in (await hands.client.list(Job, namespace="ml")).items]


@pytest.mark.parametrize(
    ("revalidated", "seen", "seconds"),
    [
        ("2025-06-01T11:30:00Z", None, HOUR / 2),
        ("2025-06-01T10:00:00Z", None, 0),
        (None, None, 0),
        ("2025-06-01T10:00:00Z", job("Failed", "2025-06-01T11:45:00Z"), HOUR * 3 / 4),
        ("2025-06-01T10:00:00Z", job("Complete", "2025-06-01T12:00:00Z"), HOUR),
        ("2025-06-01T12:00:30Z", None, HOUR + 30),
    ],
)
def test_the_next_check_is_an_interval_after_the_last_one(revalidated, seen, seconds):
    """A failed check is a check, so that a source that is away is not queried all the time."""
    assert revalidate_in_seconds(followed(lastRevalidated=revalidated), seen, SETTINGS, NOW) == seconds


def test_a_source_that_is_not_followed_is_never_checked():
    """Neither the usual policy nor a source that has not been fetched yet needs a check."""
    assert revalidate_in_seconds(cluster_model(), None, SETTINGS, NOW) is None
    assert revalidate_in_seconds(cluster_model(refreshPolicy="OnChange"), None, SETTINGS, NOW) is None


def test_another_version_replaces_the_status():
    """A check that found another version changes path and digest, and the Model is Ready before and after."""
    model = followed(lastRevalidated="2025-06-01T10:00:00Z")
    seen = JobFacts(job(), (fetch_pod(message=termination_message("v2", sha256=OTHER)),))
    status = derive_supplied_status(model, JOB, seen, now=NOW)
    assert (status["phase"], status["sha256"], status["sourceETag"]) == ("Ready", OTHER, '"v2"')
    assert status["path"].endswith("/v2/model.gguf")
    assert status["lastRevalidated"] == "2025-06-01T11:00:00Z"
    del status["conditions"]
    later = derive_supplied_status(followed(**status), JOB, JobFacts(), now=NOW)
    assert (later["path"], later["lastRevalidated"]) == (status["path"], status["lastRevalidated"])


@pytest.mark.parametrize(
    ("seen", "held", "reason"),
    [
        (JobFacts(), "False", "NotFetched"),
        (JobFacts(job(), (fetch_pod(message=termination_message()),)), "True", "InSync"),
        (JobFacts(job(), (fetch_pod(message=termination_message(kept="no answer in 60 s")),)), "False", "LookFailed"),
    ],
)
def test_the_condition_has_the_result_of_the_last_check(seen, held, reason):
    """UpToDate exists for followed sources only, and has the result of the check."""
    status = derive_supplied_status(cluster_model(refreshPolicy="OnChange"), JOB, seen, now=NOW)
    [found] = [one for one in status["conditions"] if one["type"] == "UpToDate"]
    assert (found["status"], found["reason"]) == (held, reason)
    still = derive_supplied_status(cluster_model(), JOB, seen, now=NOW)
    assert "UpToDate" not in [one["type"] for one in still["conditions"]]


async def test_a_change_upstream_rolls_the_pods_and_no_change_does_not(autojump_clock):
    """One Job an interval; the Deployment changes when the version does, and the service is never without a Model."""
    async with open_pods() as hands:
        await hands.create_model(refreshPolicy="OnChange")
        await hands.apply()
        await hands.end_job(message=termination_message("v1"))
        before = (await hands.json(Deployment))["metadata"]["generation"]
        [first] = await jobs(hands)

        await trio.sleep(HOUR + SETTLED)
        [second] = await jobs(hands)
        assert second != first
        assert await hands.model_where() == "Ready/ModelReady"
        await hands.end_job(message=termination_message("v1"))
        assert (await hands.json(Deployment))["metadata"]["generation"] == before

        await trio.sleep(HOUR + SETTLED)
        await hands.end_job(message=termination_message("v2", sha256=OTHER))
        assert await hands.model_where() == "Ready/ModelReady"
        [container, _] = (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"]
        assert any(word.endswith("/v2/model.gguf") for word in container["args"])

        [quiet] = await jobs(hands)
        await trio.sleep(HOUR / 2)
        assert await jobs(hands) == [quiet]


async def test_a_failed_check_changes_nothing(autojump_clock):
    """A failed Job, an hour after a successful one, changes neither the Model's phase nor the pods."""
    async with open_pods() as hands:
        await hands.create_model(refreshPolicy="OnChange")
        await hands.apply()
        await hands.finish_job(message=termination_message("v1"))
        await trio.sleep(HOUR + SETTLED)
        before = await hands.json(Deployment)
        await hands.finish_job(code=1, message="the disk is full")
        assert await hands.model_where() == "Ready/ModelReady"
        assert (await hands.json(Deployment))["metadata"]["generation"] == before["metadata"]["generation"]
        await trio.sleep(HOUR + SETTLED)
        assert [one.status.conditions for one in (await hands.client.list(Job, namespace="ml")).items] == [()]
