"""Adding networks to a list in `config.toml` leaves the rest of the file unchanged."""

import stat
import tomllib

import pytest

from llmkube.base.settings import SettingError
from llmkube.cli.config_edit import plan_addition

NEW = "10.1.0.0/16"
COMMENTED = """\
# mine
drain_seconds = 5  # short

[agent] # this host
namespace = "ml"   # theirs
allow_from = [
  "10.0.0.0/16",  # pods
]

[up]
gateway_port = 8081
"""


def edited(folder, text, *networks):
    if text is not None:
        (folder / "config.toml").write_text(text)
    addition = plan_addition(folder, "agent", "allow_from", networks or (NEW,))
    addition.write()
    return addition, (folder / "config.toml").read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {"agent": {"allow_from": [NEW]}}),
        ("", {"agent": {"allow_from": [NEW]}}),
        ("[agent]\nnamespace = 'ml'", {"agent": {"namespace": "ml", "allow_from": [NEW]}}),
        ("agent.namespace = 'ml'\n", {"agent": {"namespace": "ml", "allow_from": [NEW]}}),
        ("agent = {namespace = 'ml'}\n", {"agent": {"namespace": "ml", "allow_from": [NEW]}}),
        ("[up]\ngateway_port = 1\n", {"up": {"gateway_port": 1}, "agent": {"allow_from": [NEW]}}),
        ("[agent]\nallow_from = []\n", {"agent": {"allow_from": [NEW]}}),
        # a top-level list applies to the agent too; the agent's own list replaces it
        ("allow_from = ['10.0.0.0/8']\n", {"allow_from": ["10.0.0.0/8"], "agent": {"allow_from": ["10.0.0.0/8", NEW]}}),
    ],
)
def test_network_is_added_to_the_effective_list(tmp_path, text, expected):
    """The table may have any form, the file may be missing, and the written file is private."""
    addition, now = edited(tmp_path, text)
    assert tomllib.loads(now) == expected
    assert addition.added == (NEW,)
    assert stat.S_IMODE((tmp_path / "config.toml").stat().st_mode) == 0o600


def test_comments_and_other_settings_stay(tmp_path):
    _, now = edited(tmp_path, COMMENTED)
    assert [line for line in now.splitlines() if NEW not in line] == COMMENTED.splitlines()
    assert tomllib.loads(now)["agent"]["allow_from"] == ["10.0.0.0/16", NEW]


def test_listed_network_is_not_added_again(tmp_path):
    addition, now = edited(tmp_path, COMMENTED, "10.0.0.0/16")
    assert addition.added == ()
    assert now == COMMENTED
    assert edited(tmp_path, None, NEW, NEW)[0].added == (NEW,)
    assert edited(tmp_path, None, NEW, NEW)[0].added == ()


def test_symlink_to_the_file_is_kept(tmp_path):
    (tmp_path / "mine").write_text(COMMENTED)
    (tmp_path / "config.toml").symlink_to(tmp_path / "mine")
    edited(tmp_path, None)
    assert (tmp_path / "config.toml").is_symlink()
    assert NEW in (tmp_path / "mine").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agent", "is not TOML"),
        ("[agent]\nallow_from = '10.0.0.0/8'\n", "agent.allow_from: '10.0.0.0/8' is not a list of texts"),
        ("[agent]\nallow_form = []\n", "agent.allow_form: there is no such setting; did you mean allow_from"),
    ],
)
def test_invalid_file_is_not_changed(tmp_path, text, message):
    """The error is the one that the agent reports."""
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(SettingError, match=message):
        plan_addition(tmp_path, "agent", "allow_from", (NEW,))
    assert (tmp_path / "config.toml").read_text() == text
