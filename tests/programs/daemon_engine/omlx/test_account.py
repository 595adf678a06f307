"""When the memory of a model counts as back, of a process that holds others too."""

import pytest

from llmkube.programs.daemon_engine.omlx.account import MEASURABLE_BYTES, Account, Shot, noted, remains

G = 1024**3
OURS, OTHER = 4 * G, 2 * G


def shot(held, others=(), *, pid=1, size=OURS):
    return Shot(pid=pid, held=held, size=size, others=dict.fromkeys(others, OTHER))


def account(before, loaded):
    return Account(before=before, loaded=loaded)


LOADED = account(shot(G), shot(5 * G))


@pytest.mark.parametrize(
    ("known", "now", "still"),
    [
        pytest.param(LOADED, shot(G), False, id="it holds what it held before"),
        pytest.param(LOADED, shot(5 * G), True, id="it holds all of it"),
        pytest.param(LOADED, shot(2 * G), False, id="a quarter is left: buffers of its requests"),
        pytest.param(LOADED, shot(4 * G), True, id="three quarters are left"),
        pytest.param(LOADED, shot(3 * G, ["other"]), False, id="another one came, ours went"),
        pytest.param(LOADED, shot(7 * G, ["other"]), True, id="another one came, ours stayed"),
        pytest.param(account(shot(3 * G, ["other"]), shot(7 * G, ["other"])), shot(5 * G), True, id="another one went"),
        pytest.param(account(shot(3 * G, ["other"]), shot(7 * G, ["other"])), shot(G), False, id="both went"),
        pytest.param(account(None, shot(5 * G)), shot(5 * G), True, id="it was there at the first look"),
        pytest.param(account(None, shot(5 * G)), shot(G), False, id="it was there at the first look, and went"),
        pytest.param(account(None, shot(5 * G, size=0)), shot(5 * G), False, id="nobody knows what it takes"),
        pytest.param(account(shot(G), shot(2 * G)), shot(G), False, id="it took less than it was said to"),
        pytest.param(account(shot(G), shot(2 * G)), shot(2 * G), True, id="it took less, and stayed"),
        pytest.param(account(shot(G), shot(5 * G, size=0)), shot(5 * G), True, id="measured alone"),
        pytest.param(LOADED, shot(5 * G, pid=2), False, id="another process"),
        pytest.param(Account(before=shot(G)), shot(5 * G), False, id="it was never listed"),
    ],
)
def test_what_is_left_of_a_model(known, now, still):
    """Half of what it takes decides, after what others have brought and taken along."""
    assert remains(known, now) is still


def test_a_model_that_is_too_small_to_be_seen_is_the_servers_word():
    """Buffers come and go by as much."""
    small = MEASURABLE_BYTES - 1
    known = account(shot(G), shot(G + small, size=small))
    assert not remains(known, shot(G + small))


def test_looks_are_taken_into_account_in_their_order():
    """Listed, it is there; not listed, it is remembered until its memory is back; then the next load is measured."""
    known = noted(Account(), shot(G), listed=False)
    assert known == Account(before=shot(G))
    known = noted(known, shot(5 * G), listed=True)
    assert known == LOADED
    assert noted(known, shot(5 * G), listed=False) == LOADED
    assert noted(known, shot(2 * G), listed=False) == Account(before=shot(2 * G))


def test_of_another_process_nothing_is_known():
    """Nor of one that is not seen any more."""
    assert noted(LOADED, shot(7 * G, pid=2), listed=True) == Account(loaded=shot(7 * G, pid=2))
    assert noted(LOADED, shot(7 * G, pid=2), listed=False) == Account(before=shot(7 * G, pid=2))
    assert noted(LOADED, Shot(pid=None), listed=True) == Account()


def test_memory_of_another_model_that_is_not_back_yet_still_counts():
    """It is not listed at the last look before ours is unloaded; what then comes back was not ours."""
    both = account(shot(3 * G, ["other"]), shot(7 * G, ["other"]))
    known = noted(both, shot(7 * G), listed=True)
    assert known.loaded == shot(7 * G, ["other"])
    assert remains(known, shot(5 * G))
    assert noted(both, shot(5 * G), listed=True).loaded == shot(5 * G)
