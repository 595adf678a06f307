"""A condition's time tells when its status flipped, and nothing else moves it."""

import datetime

import pytest

from controller.objects import EARLIER, NOW, condition
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.wire.conditions import Statement, current, settle
from llmkube.k8s.wire.times import timestamp


def observed(*conditions):
    return [decode(Condition, one) for one in conditions]


@pytest.mark.parametrize(
    ("before", "since"),
    [
        ([], "2025-06-01T12:00:00Z"),
        ([condition("Available", True, "InferenceReady")], EARLIER),
        ([condition("Available", True, "SomethingElse", "other words", 7)], EARLIER),
        ([condition("Available", False, "NoHost")], "2025-06-01T12:00:00Z"),
        ([condition("Available", "Unknown", "Who")], "2025-06-01T12:00:00Z"),
        ([condition("Loaded", True, "Loaded")], "2025-06-01T12:00:00Z"),
        ([condition("Available", True, "Odd") | {"lastTransitionTime": ""}], "2025-06-01T12:00:00Z"),
    ],
)
def test_the_transition_time_moves_only_with_the_status(before, since):
    """A new reason, message or generation keeps the time; a new status, or none before, is a transition."""
    statement = Statement("Available", holds=True, reason="InferenceReady", message="1 of 1 replicas ready")
    assert settle([statement], observed(*before), generation=8, now=NOW) == [
        {
            "type": "Available",
            "status": "True",
            "reason": "InferenceReady",
            "message": "1 of 1 replicas ready",
            "lastTransitionTime": since,
            "observedGeneration": 8,
        }
    ]


def test_conditions_of_others_are_not_ours_to_repeat():
    """Only what is stated comes out, so that applying it never takes over another writer's condition."""
    statement = Statement("Degraded", holds=False, reason="InferenceReady", message="")
    settled = settle([statement], observed(condition("Loaded", True, "Loaded")), generation=1, now=NOW)
    assert [one["type"] for one in settled] == ["Degraded"]


@pytest.mark.parametrize(
    ("seen", "counts"),
    [(None, True), (0, True), (3, True), (4, True), (2, False)],
)
def test_a_verdict_on_an_older_spec_is_no_verdict_on_this_one(seen, counts):
    """A condition counts for generation 3 when it says nothing about generations, or names this one or a later one."""
    found = current(observed(condition("Accepted", False, "Invalid", generation=seen)), "Accepted", 3)
    assert (found is not None) is counts


@pytest.mark.parametrize(
    ("reason", "spelled"),
    [
        ("ImagePullBackOff", "ImagePullBackOff"),
        ("OutOfnvidia.com/gpu", "OutOfnvidia_com_gpu"),
        ("no such file!", "no_such_file"),
        ("137", "Reason_137"),
        ("", "Reason"),
        ("日本語", "Reason"),
        ("x" * 5000, "x" * 1024),
        ("." * 1100 + "x", "x"),
    ],
)
def test_a_reason_is_one_that_the_schema_takes(reason, spelled):
    """Whoever said it, it begins with a letter and has no dots, slashes or spaces; else the whole status is refused."""
    [made] = settle([Statement("Progressing", holds=True, reason=reason, message="")], (), generation=1, now=NOW)
    assert made["reason"] == spelled


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (8_192, 8_192), (40_000, 8_192)])
def test_a_message_is_no_longer_than_the_schema_takes(length, kept):
    """A quoted refusal of any length fits; a cut is marked with an ellipsis."""
    [made] = settle([Statement("Degraded", holds=True, reason="R", message="a" * length)], (), generation=1, now=NOW)
    assert len(made["message"].encode()) == kept
    assert made["message"].endswith("…") == (length > kept)


def test_timestamps_are_whole_seconds_in_utc():
    """A moment in any zone is written as Kubernetes writes it."""
    there = datetime.timezone(datetime.timedelta(hours=2))
    assert timestamp(datetime.datetime(2025, 6, 1, 14, 0, 0, 999_999, tzinfo=there)) == "2025-06-01T12:00:00Z"
