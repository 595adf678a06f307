"""Whose oMLX serves a model."""

import pytest

from llmkube.programs.daemon_engine.omlx.choosing import Found, Whose, choose

URL, FOLDER = "http://127.0.0.1:8000", "/models/tiny"


@pytest.mark.parametrize(
    ("found", "whose", "said"),
    [
        ({"folders": ["/models/a", FOLDER]}, Whose.THEIRS, "has the model"),
        ({"folders": ["/models/a"]}, Whose.OURS, f"add the folder above {FOLDER} to its model folders"),
        ({"folders": []}, Whose.OURS, "does not have the model"),
        ({"folders": ["", ""]}, Whose.OURS, "does not say where its models are"),
        ({"answers": False, "error": "no oMLX answers"}, Whose.OURS, f"no oMLX runs at {URL}"),
        ({"is_omlx": False}, Whose.OURS, "does not answer as oMLX does"),
        ({"error": "oMLX answers 401: Invalid API key", "status": 401}, Whose.OURS, "--omlx-key-file"),
        ({"error": "oMLX has not answered /health in 2 s"}, Whose.NONE, "no second one is started beside it"),
        ({"error": "oMLX answers 500: oops", "status": 500}, Whose.NONE, "oops; no second one"),
    ],
)
def test_one_that_runs_is_used_if_it_can_serve_the_model(found, whose, said):
    """Else one of our own, and why; but none beside one that may have loaded what it does not tell."""
    choice = choose(Found(url=URL, **found), FOLDER)
    assert choice.whose is whose
    assert said in choice.why
