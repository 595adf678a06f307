"""Deliberate bugs: whether a timeline that must fail with one of them has failed."""

import inspect
import logging
import sys
from contextlib import contextmanager
from functools import partial

import attrs
import pytest
import structlog
import trio

from llmkube.base.errors import leaves
from llmkube.k8s.codec import encode
from llmkube.k8s.reflector import Cache
from llmkube.k8s.resource import Key
from sim import score
from virtual_clock import virtual_clock

MISTAKES = (TypeError, AttributeError, NameError)
"""Errors of a mutant that no longer fits the function which it replaces."""


class BrokenMutantError(Exception):
    """A mutant crashes by a mistake of its own: the failure of its timeline proves nothing."""


def is_caught(play):
    """Return whether an assertion fails in a timeline; other failures prove nothing.

    Raises:
        BrokenMutantError: The mutant has crashed.
    """
    found = []
    with reject_broken_mutants():
        try:
            play()
        except (AssertionError, ExceptionGroup) as error:
            found = leaves(error)
            _check(found)
    return any(isinstance(leaf, AssertionError) for leaf in found)


def play(timeline):
    """Run a timeline on a virtual clock; test parameters without a default are None."""
    taken = [
        each for each in inspect.signature(timeline).parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    given = {each.name: None for each in taken if each.default is each.empty}
    trio.run(partial(timeline, **given), clock=virtual_clock())


def rows(table):
    """Return the bugs of a table as parameters: object, attribute, faulty value and timeline."""
    return [pytest.param((*bug, timeline), id=name) for timeline, bugs in table.items() for name, bug in bugs.items()]


def assert_caught(monkeypatch, row, play=play):
    """Assert that a timeline fails with the bug of a row."""
    owner, attribute, replacement, timeline = row
    monkeypatch.setattr(owner, attribute, replacement)
    assert is_caught(partial(play, timeline))


def assert_recorded(monkeypatch, row):
    """Assert that the monitor records the bug of a row in its column, and that the timeline is clean without it."""
    owner, attribute, replacement, (timeline, column) = row
    with monkeypatch.context() as patched, reject_broken_mutants():
        patched.setattr(owner, attribute, replacement)
        seen = {one.column for one in score.play(timeline, quiet_minutes=3).violations}
    assert column in seen
    assert not score.play(timeline, quiet_minutes=3).violations


def steps(*happenings, hosts=1, on_request=False):
    """Return a timeline of a few events, each with its time, its name, and its seed if it matters."""
    made = tuple(score.Happening(at, name, dice[0] if dice else 0) for at, name, *dice in happenings)
    busy_seconds = made[-1].at + 500.0
    return score.Timeline(1, hosts, 15.0, False, on_request, made, busy_seconds=busy_seconds, on_request=on_request)


CREATED = ((1.0, "create"),)


@contextmanager
def reject_broken_mutants():
    """Raise `BrokenMutantError` at the end if the mutant has crashed; programs contain and log crashes."""
    crashes, before = [], structlog.get_config()

    def collect(logger, method, event):
        if event.get("exc_info") and (crash := sys.exc_info()[1]) is not None:
            crashes.extend(leaves(crash))
        raise structlog.DropEvent

    structlog.configure(processors=[collect], wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)
    _check(crashes)


def _check(crashes):
    for crash in crashes:
        if isinstance(crash, MISTAKES):
            raise BrokenMutantError(f"the mutant does not fit what it replaces: {crash!r}") from crash


async def do_nothing(*_, **__):
    """Do nothing, in the place of any asynchronous function."""
    await trio.lowlevel.checkpoint()


def never_yields(original):
    """Return a `ClaimManager.may_run` that lets every running engine continue."""

    def may_run(self, desired, *, running, has_engine):
        return original(self, desired, running=running, has_engine=has_engine) or running

    return may_run


def keep_what_is_gone(self, listing, original=Cache.replace):
    """A `Cache.replace` that adds the objects of a list, and removes none."""
    present = {Key.of(raw) for raw in listing.raw}
    gone = tuple(encode(found) for key, found in self.items() if key not in present)
    return original(self, attrs.evolve(listing, raw=(*listing.raw, *gone)))
