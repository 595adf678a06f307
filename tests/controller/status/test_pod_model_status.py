"""A Model's phase in a cluster, as a table of the provider of its weights and their state."""

import json

import pytest

from controller.objects import EARLIER, NOW
from controller.podobjects import (
    FETCHED,
    HUB_FILE,
    SETTINGS,
    SHA,
    cluster_model,
    fetch_pod,
    job_of,
    unscheduled,
    waiting,
)
from llmkube.controller.render.model_sources import cache_key
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.job_result import read_failure, read_fetched
from llmkube.controller.status.model_status import JobFacts, assess_supply, derive_supplied_status
from llmkube.controller.status.supply import Supply, Usage, choose_supply, is_remembered, weights_path, without_effect

FETCHER, BRINGER, EPHEMERAL = Usage(), Usage(engine_fetches=True), Usage(pods_fetch=True)
ON_NODES = WorkloadSettings(image="x", host_paths=("/data",))
JOB = Supply("job")


@pytest.mark.parametrize(
    ("source", "spec", "users", "by", "reason"),
    [
        (HUB_FILE, {}, [], "job", ""),
        (HUB_FILE, {}, [FETCHER, BRINGER], "job", ""),
        (HUB_FILE, {}, [BRINGER, BRINGER], "runtime", ""),
        (HUB_FILE, {"prefetch": True}, [BRINGER], "job", ""),
        (HUB_FILE, {}, [EPHEMERAL, BRINGER], "pods", ""),
        (HUB_FILE, {"prefetch": True}, [EPHEMERAL], "job", ""),
        (HUB_FILE, {}, [EPHEMERAL, FETCHER], "job", ""),
        ("https://x.org/m.gguf", {}, [], "job", ""),
        ("builtin://demo", {}, [FETCHER], "job", ""),
        ("org/repo", {}, [], "job", ""),
        ("org/repo@v1", {"format": "safetensors"}, [FETCHER], "runtime", ""),
        ("pvc://claim/m.gguf", {}, [FETCHER], "claim", ""),
        ("pvc://claim/m.gguf", {}, [BRINGER], "claim", ""),
        ("pvc://claim", {}, [FETCHER], "nothing", "SourceInvalid"),
        ("s3://bucket/m.gguf", {}, [FETCHER], "job", ""),
        ("s3://bucket/m", {"format": "safetensors"}, [FETCHER], "nothing", "SourceUnsupported"),
        ("s3://bucket/m.gguf", {}, [BRINGER], "runtime", ""),
        ("/etc/shadow", {}, [FETCHER], "nothing", "SourceNotAllowed"),
        ("/data/m.gguf", {}, [FETCHER], "node", ""),
        ("file:///data/../etc/m.gguf", {}, [FETCHER], "nothing", "SourceNotAllowed"),
        ("/data-other/m.gguf", {}, [FETCHER], "nothing", "SourceNotAllowed"),
        ("/nowhere/m", {}, [BRINGER], "runtime", ""),
        ("hf://org/repo/x.bin", {}, [], "nothing", "SourceInvalid"),
        ("hf://org/repo/x.bin", {}, [BRINGER], "runtime", ""),
        (HUB_FILE, {"files": ["a.gguf"]}, [], "nothing", "InvalidFileSet"),
    ],
)
def test_the_provider_of_the_weights(source, spec, users, by, reason):
    """The source, its services and the operator's settings decide, and a refusal has its reason."""
    supply = choose_supply(cluster_model(source, **spec), users, ON_NODES)
    assert (supply.by, supply.reason) == (by, reason)


def remembered(**more):
    key = cache_key(cluster_model().spec)
    return cluster_model(status={"cacheKey": key, "path": f"/models/{key}/model.gguf", "size": "4.5 GiB", **more})


@pytest.mark.parametrize(
    ("seen", "phase", "reason", "words"),
    [
        (JobFacts(), "Pending", "Pending", "waiting for the Job"),
        (JobFacts(job=job_of()), "Pending", "Pending", "is waiting for its pod to start; `kubectl describe job"),
        (JobFacts(job=job_of(), pods=(fetch_pod(None),)), "Downloading", "DownloadStarted", "is fetching it"),
        (JobFacts(job=job_of("Complete"), pods=(fetch_pod(),)), "Ready", "ModelReady", "4.5 GiB"),
        (JobFacts(job=job_of(), pods=(fetch_pod(),)), "Downloading", "DownloadStarted", "is fetching it"),
        (JobFacts(job=job_of("Complete"), pods=(fetch_pod(None),)), "Downloading", "DownloadStarted", "is fetching it"),
        (JobFacts(job=job_of("Complete")), "Pending", "NoResult", "wrote no result"),
        (JobFacts(job=job_of("Complete"), pods=(fetch_pod(0, "no json"),)), "Pending", "NoResult", "wrote no result"),
        (JobFacts(job=job_of("Complete"), pods=(fetch_pod(0, '["odd"]'),)), "Pending", "NoResult", "wrote no result"),
        (JobFacts(job=job_of("Failed")), "Failed", "BackoffLimitExceeded", "tried 5 times"),
        (
            JobFacts(job=job_of("Failed"), pods=(fetch_pod(2, '{"reason":"NotGGUF","message":"it is HTML"}'),)),
            "Failed", "NotGGUF", "it is HTML",
        ),
        (JobFacts(job=job_of("Failed"), pods=(fetch_pod(1, "Trace\nValueError: x"),)), "Failed", "FetchFailed", "x"),
        (JobFacts(job=job_of("Failed"), pods=(fetch_pod(137, "", reason="OOMKilled"),)), "Failed", "OOMKilled", "mem"),
        (JobFacts(job=job_of(), pods=(waiting("ErrImagePull", "no image"),)), "Pending", "ErrImagePull", "no image"),
        (JobFacts(job=job_of(), pods=(unscheduled("no node"),)), "Pending", "Unschedulable", "no node"),
        (
            JobFacts(job=job_of(), pods=(fetch_pod(1, '{"reason":"Stalled","message":"too slow"}'),)),
            "Downloading", "Stalled", "too slow; the Job retries",
        ),
        (
            JobFacts(job_of(), (fetch_pod(1, '{"reason":"Stalled","message":"slow"}'), fetch_pod(None)), percent=5),
            "Downloading", "Stalled", "slow; the Job retries: 5 %",
        ),
        (
            JobFacts(job=job_of(), pods=(fetch_pod(1, '{"reason":"Stalled","message":"too slow"}'), fetch_pod())),
            "Downloading", "DownloadStarted", "is fetching it",
        ),
    ],
)  # fmt: skip
def test_the_phase_follows_the_job(seen, phase, reason, words):
    """The phase comes from the Job, its pods and their termination messages, quoted word for word."""
    verdict = assess_supply(cluster_model(), JOB, seen)
    assert (verdict.phase, verdict.reason) == (phase, reason)
    assert words in verdict.message


def test_a_fetched_file_is_reported():
    """Size, digest, path, key and header come from the fetch's termination message."""
    seen = JobFacts(job=job_of("Complete"), pods=(fetch_pod(),))
    status = derive_supplied_status(cluster_model(), JOB, seen, now=NOW)
    key = cache_key(cluster_model().spec)
    assert status["path"] == f"/models/{key}/model.gguf"
    assert (status["cacheKey"], status["size"], status["sha256"]) == (key, "4.5 GiB", SHA)
    assert status["gguf"] == {"architecture": "llama", "quantization": "Q4_K_M", "contextLength": 131072}


@pytest.mark.parametrize("files", [["a.gguf"], ["a-1-of-2.gguf", "a-2-of-2.gguf"]])
def test_several_files_are_reported_by_name_and_a_single_one_is_not(files):
    """The path already names a single one; the record of several is reported again without the Job."""
    message = json.dumps({**json.loads(FETCHED), "files": files})
    status = derive_supplied_status(
        cluster_model(), JOB, JobFacts(job_of("Complete"), (fetch_pod(0, message),)), now=NOW
    )
    reported = files if len(files) > 1 else None
    assert status.get("stagedFiles") == reported
    again = derive_supplied_status(cluster_model(status=status), JOB, JobFacts(), now=NOW)
    assert again.get("stagedFiles") == reported


def test_a_recorded_result_is_reported_again():
    """Without Job and pods the status is unchanged, word for word."""
    model = remembered(sha256=SHA, gguf={"architecture": "llama"})
    status = derive_supplied_status(model, JOB, JobFacts(), now=NOW)
    assert (status["phase"], status["path"], status["sha256"]) == ("Ready", model.status.path, SHA)
    assert status["gguf"] == {"architecture": "llama"}


def test_the_record_of_another_source_is_ignored():
    """After an edit neither path nor key nor facts of the old weights are in the status."""
    old = remembered().status
    model = cluster_model("hf://org/repo/new.gguf", status={"cacheKey": old.cache_key, "path": old.path})
    assert not is_remembered(model)
    status = derive_supplied_status(model, JOB, JobFacts(), now=NOW)
    assert status["phase"] == "Pending"
    assert not {"path", "cacheKey", "size", "gguf"} & status.keys()
    assert weights_path(model, JOB) == ""


@pytest.mark.parametrize(
    ("message", "found", "status", "reason"),
    [
        (None, "Q4_K_M", "True", "NotCompared"),
        ("Q4_K_M", "", "True", "NotCompared"),
        ("q4-k-m", "Q4_K_M", "True", "Matches"),
        ("Q8_0", "Q4_K_M", "False", "QuantizationMismatch"),
    ],
)
def test_the_quantization_is_compared_with_the_header(message, found, status, reason):
    """Case and hyphens are ignored; a missing value on either side is no contradiction."""
    model = remembered(gguf={"quantization": found} if found else {})
    spec = {"quantization": message} if message else {}
    model = cluster_model(status={"cacheKey": model.status.cache_key, "path": "/models/x/model.gguf",
                                  "gguf": {"quantization": found}}, **spec)  # fmt: skip
    conditions = derive_supplied_status(model, JOB, JobFacts(), now=NOW)["conditions"]
    [matches] = [one for one in conditions if one["type"] == "QuantizationMatches"]
    assert (matches["status"], matches["reason"]) == (status, reason)
    assert not message or message in matches["message"] or reason == "Matches"


def test_conditions_are_all_there_and_keep_their_time():
    """Available, Progressing, Degraded and QuantizationMatches, each once; unless flipped they keep their time."""
    before = {"type": "Available", "status": "True", "reason": "x", "message": "", "lastTransitionTime": EARLIER}
    status = derive_supplied_status(remembered(conditions=[before]), JOB, JobFacts(), now=NOW)
    kinds = [one["type"] for one in status["conditions"]]
    assert kinds == ["Available", "Progressing", "Degraded", "QuantizationMatches"]
    assert status["conditions"][0]["lastTransitionTime"] == EARLIER == status["lastUpdated"]


@pytest.mark.parametrize(
    ("source", "by", "path"),
    [
        (HUB_FILE, "pods", f"/models/{cache_key(cluster_model().spec)}/model.gguf"),
        ("org/repo", "pods", ""),
        ("pvc://claim/a/m.gguf", "claim", "/model-source/a/m.gguf"),
        ("/data/m.gguf", "node", "/model-source/m.gguf"),
        ("org/repo", "runtime", ""),
    ],
)
def test_the_path_of_the_engines_file(source, by, path):
    """The path is known in advance, except if only fetching can find it, or there is no file."""
    assert weights_path(cluster_model(source), Supply(by)) == path


@pytest.mark.parametrize(
    "message",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"path":"model.gguf"}',
        '{"path":"model.gguf","sizeBytes":Infinity}',
        '{"path":"model.gguf","sizeBytes":"many"}',
        '{"path":"model.gguf","sizeBytes":1,"gguf":[1]}',
        '{"path":"/etc/passwd","sizeBytes":1}',
        '{"path":"../../etc/passwd","sizeBytes":1}',
        '{"path":"0123/../../model.gguf","sizeBytes":1}',
    ],
)
def test_an_invalid_result_is_none(message):
    """A pod may report anything, but a path never leads out of its folder."""
    assert read_fetched([fetch_pod(0, message)]) is None


def test_a_path_may_have_folders():
    """Each version of a followed source has one of its own, and a name may have dots."""
    message = '{"path":"0123/model..gguf","sizeBytes":1}'
    assert read_fetched([fetch_pod(0, message)]).path == "0123/model..gguf"


@pytest.mark.parametrize("message", ["[" * 100_000, "{}", "[]", "the disk is full"])
def test_a_failure_without_a_reason_has_its_last_line(message):
    """A termination message that is not our JSON is taken as a log."""
    assert read_failure([fetch_pod(1, message)]) == ("FetchFailed", message)


def test_the_message_of_another_container_is_not_a_result():
    """Only the termination message of the container `fetch`, after it succeeded, is read."""
    assert read_fetched([fetch_pod(1), waiting("CrashLoopBackOff")]) is None
    assert read_fetched([fetch_pod(1), fetch_pod(0, FETCHED)]).path == "model.gguf"


def test_the_settings_of_the_tests_allow_no_paths_on_nodes():
    """By default no folder of a node can be named."""
    assert choose_supply(cluster_model("/data/m.gguf"), [], SETTINGS).reason == "SourceNotAllowed"


@pytest.mark.parametrize("users", [[], [Usage()], [Usage(engine_fetches=True)], [Usage(pods_fetch=True)]])
def test_a_model_of_ollamas_library_is_refused_in_pods(users):
    """For any provider, the Model names the source to use instead."""
    supply = choose_supply(cluster_model("ollama://llama3.2"), users, WorkloadSettings(image="x"))
    assert (supply.by, supply.reason) == ("nothing", "SourceUnsupported")
    assert supply.message.startswith("ollama://llama3.2:latest is pulled by Ollama on a host")
    assert supply.message.endswith("such as ORG/REPO:Q4_K_M")


@pytest.mark.parametrize(("by", "ignored"), [("job", False), ("pods", False), ("claim", True), ("runtime", True)])
def test_the_policy_applies_to_fetched_sources(by, ignored):
    """A source that is mounted, or fetched by the engine itself, is not followed, and the service reports it."""
    path = "Model.spec.refreshPolicy"
    model = cluster_model("pvc://c/m.gguf" if by == "claim" else "org/repo", refreshPolicy="OnChange")
    assert (path in without_effect(model, Supply(by), [path])) is ignored
