"""Each deliberate defect in the embedded server is caught by the contract or by the recorded script.

A mutant replaces one function. The suite that must fail is named next to it; that it passes without the mutant is what
`test_recorded.py` and `test_api_server.py` show.
"""

import copy
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from contracts import check_controllers, check_reads, check_writes, script_apply, script_objects, script_writes
from contracts.compare import differences
from contracts.lab import Lab, open_lab
from contracts.nouns import Chapter
from contracts.playing import LEFT_HALF_WAY, open_embedded, play
from contracts.recording import load
from llmkube.apiserver.protocol import responses
from llmkube.apiserver.schema import defaults
from llmkube.apiserver.storage.revisions import Change, Store
from llmkube.apiserver.writes import apply_planner, preparation, strategy, write_planner

pytestmark = LEFT_HALF_WAY


@attrs.frozen
class Mutant:
    """A defect, and who notices it: checks of the contract, or a chapter of the script."""

    defect: str
    place: Any
    function: str
    instead: Callable[..., Any]
    checks: tuple[Callable[[Lab], Awaitable[None]], ...] = ()
    chapter: Chapter | None = None


def _accept_stale(*_: Any) -> None:
    """Let every resourceVersion pass."""


def _spec_through_status(kind: Any, obj: Any, old: Any, subresource: str = "") -> Any:
    prepared = _PREPARE(kind, obj, old, subresource)
    return {**prepared, "spec": obj["spec"]} if subresource == "status" and "spec" in obj else prepared


def _backwards(self: responses.EventLines, revision: int) -> dict[str, Any]:
    resource = self.view.kind.resource
    metadata = {"resourceVersion": str(revision - 1)}
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}


def _keep_unknown(obj: Any, _: Any) -> Any:
    return copy.deepcopy(obj), ()


def _lose_every_third(self: Store, changes: Any) -> None:
    kept: list[Change] = [change for change in changes if change.revision % 3 or "widgets" not in change.ref.kind]
    _APPLY(self, kept)
    if len(kept) < len(changes):
        self._revision = changes[-1].revision


_APPLY = Store.apply
_PREPARE = strategy.prepare

MUTANTS = [
    Mutant(
        "a stale resourceVersion is accepted",
        write_planner,
        "check_version",
        _accept_stale,
        chapter=script_writes.chapter_updates,
    ),
    Mutant(
        "an apply does not look at the version",
        apply_planner,
        "check_version",
        _accept_stale,
        checks=(
            check_controllers.check_a_service_may_be_made_and_not_changed,
            check_controllers.check_a_custom_object_may_be_made_and_not_changed,
            check_controllers.check_of_many_who_make_an_object_one_does,
        ),
        chapter=script_apply.chapter_apply,
    ),
    Mutant(
        "a status patch touches spec",
        strategy,
        "prepare",
        _spec_through_status,
        chapter=script_writes.chapter_status,
    ),
    Mutant(
        "a bookmark goes backwards",
        responses.EventLines,
        "bookmark",
        _backwards,
        checks=(check_reads.check_bookmarks_do_not_go_backwards,),
    ),
    Mutant(
        "unknown fields are kept",
        defaults,
        "prune",
        _keep_unknown,
        checks=(check_writes.check_a_created_object_gets_its_identity,),
        chapter=script_objects.chapter_create,
    ),
    Mutant(
        "an acknowledged write is lost",
        Store,
        "apply",
        _lose_every_third,
        checks=(check_reads.check_every_acknowledged_write_is_read_again,),
        chapter=script_writes.chapter_updates,
    ),
    Mutant(
        "rules are not evaluated",
        strategy.validation,
        "with_rule_errors",
        lambda errors, *_: errors,
        chapter=script_objects.chapter_gadgets,
    ),
    Mutant(
        "a write that changes nothing is one",
        preparation,
        "equal_except_times",
        lambda *_: False,
        checks=(check_writes.check_a_write_that_changes_nothing_is_none,),
    ),
]


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    original = getattr(mutant.place, mutant.function)
    setattr(mutant.place, mutant.function, mutant.instead)
    try:
        yield
    finally:
        setattr(mutant.place, mutant.function, original)


CHECKED = [(mutant, check) for mutant in MUTANTS for check in mutant.checks]


@pytest.mark.parametrize(("mutant", "check"), CHECKED, ids=[mutant.defect for mutant, _ in CHECKED])
async def test_the_contract_notices(mutant: Mutant, check: Callable[[Lab], Awaitable[None]]):
    """A server with the defect fails the check that is there for it."""
    with pytest.RaisesGroup(Exception, allow_unwrapped=True, flatten_subgroups=True), mutated(mutant):
        async with open_embedded() as http, open_lab(http) as lab:
            await check(lab)


RECORDED = [mutant for mutant in MUTANTS if mutant.chapter is not None]


@pytest.mark.parametrize("mutant", RECORDED, ids=[mutant.defect for mutant in RECORDED])
async def test_the_script_notices(mutant: Mutant):
    """A server with the defect answers a chapter in another way than a kube-apiserver did."""
    assert mutant.chapter is not None
    with mutated(mutant):
        async with open_embedded() as http:
            answers_given = [answer.to_json() for answer in await play(http, mutant.chapter)]
    assert differences(load()[1][mutant.chapter.__name__], answers_given)
