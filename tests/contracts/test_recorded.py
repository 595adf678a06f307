"""The embedded server answers the script as a kube-apiserver did, field by field."""

import json
from collections.abc import Iterator, Sequence

import pytest

from contracts.chapters import CHAPTERS
from contracts.compare import differences
from contracts.nouns import Chapter
from contracts.playing import LEFT_HALF_WAY, open_embedded, play
from contracts.recording import load
from llmkube.apiserver.storage.revisions import Change, Store

pytestmark = LEFT_HALF_WAY

VERSION, RECORDED = load()


@pytest.fixture(autouse=True)
def _nothing_stored_is_edited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a chapter after which an object is not as it was stored: readers and its next versions share parts of it."""
    stored = []
    apply = Store.apply

    def noted(store: Store, changes: Sequence[Change]) -> None:
        stored.extend((change.after, json.dumps(change.after)) for change in changes)
        apply(store, changes)

    monkeypatch.setattr(Store, "apply", noted)
    yield
    assert all(json.dumps(obj) == text for obj, text in stored)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.__name__.removeprefix("chapter_"))
async def test_the_embedded_server_answers_as_a_real_one_did(chapter: Chapter):
    """Each answer of a chapter is the recorded one, but for what `session` gives a name."""
    async with open_embedded() as http:
        answers = [answer.to_json() for answer in await play(http, chapter)]
    assert not (found := differences(RECORDED[chapter.__name__], answers)), "\n".join(["", *found])


def test_every_chapter_has_a_name_of_its_own():
    """Answers are kept by the names of chapters: two of one name would be read as one."""
    names = [chapter.__name__ for chapter in CHAPTERS]
    assert sorted(names) == sorted(RECORDED)
