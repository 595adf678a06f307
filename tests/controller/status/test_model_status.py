"""A Model's phase follows from its host's report, row by row."""

import attrs
import pytest

from controller.objects import EARLIER, NOBODY, NOW, STUDIO, condition, fetched_model, model
from llmkube.controller.status.model_status import assess_model, derive_model_status
from llmkube.k8s.crd.model import GGUFStatus

FETCHING = condition("Fetched", False, "Fetching", "12 of 90 MiB")


@pytest.mark.parametrize(
    ("given", "hosts", "phase", "reason"),
    [
        (fetched_model(), STUDIO, "Ready", "ModelReady"),
        (fetched_model(), NOBODY, "Ready", "ModelReady"),
        (model(condition("Fetched", False, "SourceInvalid")), STUDIO, "Failed", "SourceInvalid"),
        (model(condition("Fetched", False, "SourceUnsupported")), STUDIO, "Failed", "SourceUnsupported"),
        (model(condition("Fetched", False, "FileNotFound")), STUDIO, "Failed", "FileNotFound"),
        (model(condition("Fetched", False, "NotGGUF")), STUDIO, "Failed", "NotGGUF"),
        (model(condition("Fetched", False, "DigestMismatch")), STUDIO, "Failed", "DigestMismatch"),
        (model(condition("Fetched", False, "FetchFailed")), STUDIO, "Failed", "FetchFailed"),
        (model(condition("Fetched", False, "NotGGUF")), NOBODY, "Failed", "NotGGUF"),
        (model(FETCHING, source="https://example.com/m.gguf"), STUDIO, "Downloading", "DownloadStarted"),
        (model(FETCHING, source="org/repo"), STUDIO, "Downloading", "DownloadStarted"),
        (model(FETCHING, source="builtin://demo"), STUDIO, "Copying", "CopyStarted"),
        (model(FETCHING, source="/models/m.gguf"), STUDIO, "Copying", "CopyStarted"),
        (model(FETCHING, source="file:///models/m.gguf"), STUDIO, "Copying", "CopyStarted"),
        (model(FETCHING), NOBODY, "Pending", "NoHost"),
        (model(), STUDIO, "Pending", "Pending"),
        (model(), NOBODY, "Pending", "NoHost"),
        (model(accelerator="cpu"), STUDIO, "Pending", "NoHost"),
        (model(condition("Fetched", True, "Fetched", generation=1), generation=2), STUDIO, "Pending", "Pending"),
        (model(condition("Fetched", False, "NotGGUF", generation=1), generation=2), STUDIO, "Pending", "Pending"),
        (model(condition("Fetched", True, "Fetched", generation=2), generation=2), STUDIO, "Ready", "ModelReady"),
    ],
)
def test_phase_table(given, hosts, phase, reason):
    verdict = assess_model(given, hosts)
    assert (verdict.phase, verdict.reason) == (phase, reason)


@pytest.mark.parametrize(
    ("given", "available", "progressing", "degraded"),
    [
        (fetched_model(), "True", "False", "False"),
        (model(FETCHING), "False", "True", "False"),
        (model(), "False", "True", "False"),
        (model(condition("Fetched", False, "NotGGUF")), "False", "False", "True"),
    ],
)
def test_the_whole_set_of_conditions_is_always_written(given, available, progressing, degraded):
    """A Model that fails is no longer Available: the conditions are written as one set."""
    status = derive_model_status(given, STUDIO, now=NOW)
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "Available": available,
        "Progressing": progressing,
        "Degraded": degraded,
        "QuantizationMatches": "True",
    }


@pytest.mark.parametrize(
    ("promised", "found", "reason", "message"),
    [
        ("Q8_0", "Q4_K_M", "QuantizationMismatch", "Q4_K_M"),
        ("q4-k-m", "Q4_K_M", "Matches", "Q4_K_M"),
        ("Q8_0", "", "NotCompared", "Q8_0"),
    ],
)
def test_the_label_of_a_file_on_a_host_is_compared_with_its_header(promised, found, reason, message):
    """The spec's promise is in the status of a Model for metal as well, with and without a header."""
    seen = fetched_model()
    seen = attrs.evolve(seen, spec=attrs.evolve(seen.spec, quantization=promised),
                        status=attrs.evolve(seen.status, gguf=GGUFStatus(quantization=found)))  # fmt: skip
    status = derive_model_status(seen, STUDIO, now=NOW)
    assert status["quantization"] == (found or promised)
    [matches] = [one for one in status["conditions"] if "Quant" in one["type"]]
    assert (matches["status"], matches["reason"]) == ("False" if "Mismatch" in reason else "True", reason)
    assert message in matches["message"]


def test_the_message_of_no_host_has_the_fix():
    """The message names the accelerator and the command that would serve it."""
    message = assess_model(model(), NOBODY).message
    advice = "start `llmkube agent --accelerator metal` on one that has it"
    assert message == f"no machine serves accelerator metal; {advice}"


def test_golden_status():
    """A fetched Model's whole status: the hosts' own condition is not repeated, a settled time is kept."""
    ready = fetched_model(generation=3)
    available = condition("Available", True, "ModelReady")
    seen = model(condition("Fetched", True, "Fetched", "933.8 KiB"), available, generation=3)
    wanted = {
        "phase": "Ready",
        "acceleratorReady": True,
        "lastUpdated": "2025-06-01T12:00:00Z",
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": "2025-06-01T12:00:00Z",
                "observedGeneration": 3,
            }
            for kind, status, reason, message in [
                ("Available", "True", "ModelReady", "933.8 KiB"),
                ("Progressing", "False", "ModelReady", "933.8 KiB"),
                ("Degraded", "False", "ModelReady", "933.8 KiB"),
                ("QuantizationMatches", "True", "NotCompared", "spec.quantization is unset"),
            ]
        ],
    }
    assert derive_model_status(ready, STUDIO, now=NOW) == wanted
    wanted["lastUpdated"] = wanted["conditions"][0]["lastTransitionTime"] = EARLIER
    assert derive_model_status(seen, STUDIO, now=NOW) == wanted


def test_last_updated_remembers_when_the_model_was_last_ready():
    """A Model that is no longer ready keeps the time, one that never was has none."""
    failed = model(condition("Fetched", False, "NotGGUF"))
    assert "lastUpdated" not in derive_model_status(failed, STUDIO, now=NOW)
    once_ready = attrs.evolve(failed, status=attrs.evolve(failed.status, last_updated=EARLIER))
    assert derive_model_status(once_ready, STUDIO, now=NOW)["lastUpdated"] == EARLIER
