"""Files of saved prompts: a damaged, foreign or unfinished one is never taken, and the least valuable goes first."""

import random
import stat
import struct

import pytest

from lengths import RESTORES
from llmkube.k8s.resource import Key
from llmkube.supervisor.engine import prompt_files
from llmkube.supervisor.engine.prompt_files import SavedPrompt

DIGEST, OWNER = "ab" * 32, "uid-1"
KEY = Key("default", "chat")


def saved(root, key=KEY, *, slot=0, content=b"x" * 100, limit=10_000, **values):
    """Write a file as an engine does, and record it; return its record."""
    folder = prompt_files.folder_of(root, key)
    folder.mkdir(parents=True, exist_ok=True)
    prompt = SavedPrompt(**{"digest": DIGEST, "owner": OWNER, "slot": slot, "tokens": 10, "size_bytes": 0,
                            "sha256": "", "priority": 1000.0, **values})  # fmt: skip
    (folder / prompt.new_name).write_bytes(content)
    prompt_files.add(root, folder, prompt, limit)
    return folder / prompt.name


def names(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_file_is_taken_once_until_it_is_put_back(tmp_path):
    """Whatever ends the engine during a restore is not restored again."""
    path = saved(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (prompt,) = prompt_files.take(path.parent, DIGEST, OWNER)
    assert not prompt_files.take(path.parent, DIGEST, OWNER)
    path = saved(tmp_path)
    (prompt,) = prompt_files.take(path.parent, DIGEST, OWNER)
    prompt_files.put_back(path.parent, prompt)
    assert prompt_files.take(path.parent, DIGEST, OWNER) == [prompt]


def test_no_damaged_or_foreign_file_is_taken(tmp_path):
    """Over random damage to files and records, what is taken is exactly what was saved, for this digest and owner."""
    rng, taken = random.Random(37), 0
    for number in range(10 * RESTORES):
        root = tmp_path / str(number)
        content = rng.randbytes(rng.randrange(1, 400))
        path = saved(root, content=content)
        record = path.with_name(path.name + ".json")
        damage, at = rng.randrange(6), rng.randrange(len(content))
        if damage == 0:
            path.write_bytes(content[:at])
        elif damage == 1:
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
        elif damage == 2:
            path.write_bytes(content + rng.randbytes(1))
        elif damage == 3:
            record.write_bytes(record.read_bytes()[: rng.randrange(len(record.read_bytes()))])
        elif damage == 4:
            path.unlink()
        asked = (DIGEST, OWNER) if rng.random() < 0.8 else rng.choice(((DIGEST, "uid-2"), ("cd" * 32, OWNER)))
        found = prompt_files.take(path.parent, *asked)
        assert bool(found) == (damage == 5 and asked == (DIGEST, OWNER)), (number, damage, asked)
        taken += len(found)
    assert taken


def test_a_save_that_an_engine_does_not_finish_leaves_the_last_one(tmp_path):
    """An engine that is killed while it saves a slot again has damaged nothing."""
    path = saved(tmp_path, content=b"first")
    path.with_name(path.name + ".new").write_bytes(b"sec")
    assert len(prompt_files.take(path.parent, DIGEST, OWNER)) == 1
    assert names(path.parent) == [path.name]
    saved(tmp_path, content=b"second")
    assert path.read_bytes() == b"second"
    assert len(prompt_files.take(path.parent, DIGEST, OWNER)) == 1


def test_unfinished_files_and_those_of_a_deleted_object_are_removed(tmp_path):
    """An engine that was killed while saving leaves nothing behind, and a new object of the same name gets nothing."""
    folder = saved(tmp_path, owner="uid-0").parent
    (folder / f"{DIGEST[:16]}-1").write_bytes(b"half")
    other = saved(tmp_path, slot=2, digest="cd" * 32)
    assert not prompt_files.take(folder, DIGEST, OWNER)
    assert names(tmp_path) == [f"default/chat/{other.name}", f"default/chat/{other.name}.json"]


def test_the_least_valuable_prompt_makes_room(tmp_path):
    """The cheapest to compute per byte goes first; an old one loses against newer ones of the same value at last."""
    saved(tmp_path, Key("default", "dear"), priority=9000.0)
    saved(tmp_path, Key("default", "cheap"), priority=100.0)
    saved(tmp_path, Key("default", "new"), priority=1000.0, limit=250)
    assert [path.parent.name for path, _ in prompt_files.read_all(tmp_path)] == ["dear", "new"]
    for number in range(40):
        saved(tmp_path, Key("default", f"later-{number}"), priority=1000.0, limit=250)
    assert "dear" not in {path.parent.name for path, _ in prompt_files.read_all(tmp_path)}
    prompt_files.trim(tmp_path, 0)
    assert names(tmp_path) == ["floor"]


def test_services_that_are_gone_leave_nothing(tmp_path):
    """Other services keep their prompts."""
    saved(tmp_path)
    saved(tmp_path, Key("other", "chat"))
    prompt_files.keep_services(tmp_path, {KEY})
    assert {path.parent.parent.name for path, _ in prompt_files.read_all(tmp_path)} == {"default"}


@pytest.mark.parametrize("words", [[7, 8, 9], [-1, 1, 3, 7, 8, 9, 0]])
def test_the_tokens_of_both_formats_are_read(tmp_path, words):
    """llama.cpp's first format has only tokens; since images it has a head. Everything else is refused."""
    path = tmp_path / "slot"
    path.write_bytes(struct.pack(f"<III{len(words)}i", 1, 4, len(words), *words) + b"state")
    assert prompt_files.read_tokens(path, 3) == [7, 8, 9]
    for damaged in ([7, 8], [-1, 1, 4, 7, 8, 9, 0], [-1, 1, 3, 7, -1, 9, 0]):
        path.write_bytes(struct.pack(f"<III{len(damaged)}i", 1, 4, len(damaged), *damaged))
        with pytest.raises(ValueError, match=r"the saved slot|the engine writes"):
            prompt_files.read_tokens(path, 3)


def test_records_of_a_later_release_are_not_used(tmp_path):
    """A record with other fields is removed, and its file with it at the next load."""
    path = saved(tmp_path)
    record = path.with_name(path.name + ".json")
    record.write_text(record.read_text().replace('"slot"', '"place"'))
    assert not prompt_files.take(path.parent, DIGEST, OWNER)
    assert names(tmp_path) == []
