"""What a router says of its requests has a name in `OUTCOMES`: no refusal of its own counts as a crash."""

import ast
from itertools import product
from pathlib import Path

import pytest

from llmkube import router
from llmkube.router.auth import principals
from llmkube.router.dialects.inbound import unread_code
from llmkube.router.dispatch.no_answer import no_answer
from llmkube.router.dispatch.record import Try
from llmkube.router.dispatch.relay import Ending
from llmkube.router.dispatch.verdicts import Cause, Failure
from llmkube.router.proxy import decisions, metrics
from llmkube.router.proxy.metrics import bounded_outcome

ROOT = Path(router.__file__).parent
ROOMS = ("dispatch", "proxy", "responses")
ELSEWHERE = {"proxy/admin.py"}  # the operator's port, whose requests are not counted

STATUS_AND_CODE = {"refused": (0, 2), "NoAnswer": (0, 1), "_own": (0, 2)}
"""Where the arguments of what refuses have them."""

COMPUTED = {
    "proxy/decisions.py": {*decisions._REFUSALS.values(), (503, "no_route")},
    "proxy/handler.py": {(400, "any of BodyError")},
    "responses/stored_pages.py": {(404, "response_not_found")},
    "dispatch/no_answer.py": set(),  # called below, with all that it can be told
    "dispatch/attempt.py": {(400, "backend_refused")},  # what is 500 or more is no answer
}
"""By modules that write a status or a code as another thing than a constant, what these can be."""


def refusals_of(name, text):
    """Return each status and code with which a module refuses."""
    for node in ast.walk(ast.parse(text)):
        called = node.func if isinstance(node, ast.Call) else None
        word = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
        if word not in STATUS_AND_CODE:
            continue
        said = [node.args[at] for at in STATUS_AND_CODE[word]]
        if all(isinstance(each, ast.Constant) for each in said):
            yield tuple(each.value for each in said)
        else:
            assert name in COMPUTED, f"{name}:{node.lineno}: say in COMPUTED what {ast.unparse(node)} can be"
            yield from COMPUTED[name]


def outcomes_of(text):
    """Return the words that a module writes down as what became of a request, a crash among them."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assign() if "outcome" in ast.unparse(node.targets[0]):
                parts = ast.walk(node.value)
            case ast.FunctionDef() if "outcome" in node.name:
                parts = ast.walk(node)
            case ast.Call() if ast.unparse(node.func) == "on_refused":
                parts = ast.walk(node)
            case _:
                continue
        yield from (each.value for each in parts if isinstance(each, ast.Constant))


def sources():
    for room in ROOMS:
        for path in sorted((ROOT / room).glob("*.py")):
            name = f"{room}/{path.name}"
            if name not in ELSEWHERE:
                yield name, path.read_text()


def without_backends():
    """Return what is said when no backend answers, of all that attempts can come to."""
    for cause, is_own, rule in product(Cause, (True, False), ("", "a rule")):
        failure = Failure(cause, "why", 500, is_own=is_own)
        said = no_answer([failure], [Try("a", cause.value, "", 0.0, 0)], closing_rule=rule, wait_seconds=1.0)
        yield said.status, said.code


def refusals():
    """Return each status and code with which a router refuses a request."""
    return {pair for name, text in sources() for pair in refusals_of(name, text)} | set(without_backends())


def test_each_refusal_is_counted_by_its_name():
    """Those of the client's own making may share `client_error`; none is a crash."""
    found = refusals()
    assert {(503, "budget_not_kept"), (503, "histories_full"), (503, "queue_full"), (404, "not_found")} <= found
    for status, code in found:
        assert bounded_outcome(code, status) in ({code} if status >= 500 else {code, "client_error"}), (status, code)


def test_no_name_is_there_that_nothing_gives():
    """Whoever reads `OUTCOMES` to write an alert waits for nothing in vain."""
    given = {code for _, code in refusals()} | {each.value for each in Ending}
    given |= {unread_code(status) for status in range(400, 600)}
    for _, text in (*sources(), ("", Path(principals.__file__).read_text())):
        given |= set(outcomes_of(text))
    assert given >= metrics.OUTCOMES - {"client_error", "stream_broken"}  # which stand for others


@pytest.mark.parametrize("code", ["budget_not_kept", "histories_full", "queue_full"])
def test_a_name_that_is_left_out_is_seen(code, monkeypatch):
    """As two of these were."""
    monkeypatch.setattr(metrics, "OUTCOMES", metrics.OUTCOMES - {code})
    with pytest.raises(AssertionError, match=code):
        test_each_refusal_is_counted_by_its_name()


@pytest.mark.parametrize("new", ['refused(503, words, "is_new")', "refused(503, words, code)", "NoAnswer(500, 'new')"])
def test_a_refusal_that_is_added_is_seen(new, monkeypatch):
    """Also one whose code is computed."""
    plain = sources
    monkeypatch.setitem(globals(), "sources", lambda: [*plain(), ("proxy/new.py", new)])
    with pytest.raises(AssertionError, match="new"):
        test_each_refusal_is_counted_by_its_name()
