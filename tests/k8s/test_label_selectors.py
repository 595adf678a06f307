"""Label selectors mean here what they mean to an API server."""

import pytest

from llmkube.base.errors import UserError
from llmkube.k8s.label_selectors import parse_selector

LABELS = {"team": "ml", "app.kubernetes.io/name": "chat", "empty": ""}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("", True),
        ("team=ml", True),
        ("team==ml", True),
        ("team = ml", True),
        ("team=web", False),
        ("team!=web", True),
        ("team!=ml", False),
        ("tier!=gold", True),
        ("tier=gold", False),
        ("team", True),
        ("tier", False),
        ("!team", False),
        ("! tier", True),
        ("team in (ml, web)", True),
        ("team in (web)", False),
        ("team notin (web,ops)", True),
        ("tier notin (gold)", True),
        ("app.kubernetes.io/name=chat,team in (ml,web),!tier", True),
        ("team=ml,tier", False),
        ("empty=", True),
        ("team=", False),
    ],
)
def test_what_a_selector_selects(text, selected):
    """Each row: a selector, and whether it fits one object's labels."""
    selector = parse_selector(text)
    assert selector.matches(LABELS) is selected
    assert selector.text == text


@pytest.mark.parametrize("text", ["=ml", "team in ml", "team in ()x", "a b", "team=ml,", "-a", "a=b=c", "a>1"])
def test_what_is_no_selector_is_refused_with_its_part(text):
    """A typo is an error at the start, not a host that serves nothing."""
    with pytest.raises(UserError, match="is not a label selector"):
        parse_selector(text)
