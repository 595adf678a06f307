"""Every kind that only the original has is named with its effect."""

import pytest

from llmkube.cli.commands.tools.migration import KINDS_OF_THEIRS, LEFT, findings


@pytest.mark.parametrize("kind", KINDS_OF_THEIRS)
def test_a_kind_that_only_they_have_is_named_with_its_effect(kind):
    """It is left alone, and what takes its place is said."""
    body = {"apiVersion": "inference.llmkube.dev/v1alpha1", "kind": kind, "metadata": {"name": "x"}, "spec": {}}
    [found] = findings([body])
    assert (found.subject, found.what) == (f"{kind} default/x", LEFT)
    assert ":" in found.says


def test_other_objects_are_none_of_ours():
    """A Deployment in the same file is passed over."""
    assert not list(findings([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}]))
