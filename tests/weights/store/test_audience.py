"""Who may be given what the store has of a source."""

import pytest

from llmkube.weights.store.audience import OWNER, PUBLIC, Audience

GATED = Audience(namespaces=("a",), credentials=("c1",))


@pytest.mark.parametrize(
    ("audience", "namespace", "credential", "admits", "shares"),
    [
        (PUBLIC, "a", "", True, True),
        (OWNER, "a", "", False, False),
        (OWNER, None, "", True, False),
        (OWNER, "", "", False, False),
        (GATED, "a", "", True, False),
        (GATED, "b", "c1", False, True),
        (GATED, "b", "c2", False, False),
    ],
)
def test_who_is_in_an_audience(audience, namespace, credential, admits, shares):
    """A namespace by name, the store's owner always; another source's blob only with a credential that has worked."""
    assert audience.admits(namespace) is admits
    assert audience.shares_with(credential) is shares


def test_an_audience_grows_by_what_the_source_gives():
    """A credential that works admits its namespace; an answer without one admits all; nothing is noted twice."""
    grown = GATED.extended("b", "c2")
    assert grown == Audience(namespaces=("a", "b"), credentials=("c1", "c2"))
    assert grown.extended("b", "c1") == grown
    assert GATED.extended(None, "c1") == GATED
    assert GATED.extended("b", "").public
