import json

import attrs
import pytest

from llmkube.supervisor.values.proxy_config import ProxyConfig

CONFIG = ProxyConfig(
    ("192.168.1.5", 4711), ("127.0.0.1", 4712), "the-key", ("10.42.0.0/16", "fd00::/8"), (4713, "boot:17")
)


def test_a_config_is_read_back():
    """The text of a file gives the same proxy again; its key is only there."""
    assert ProxyConfig.load(CONFIG.dump()) == CONFIG
    assert "the-key" not in repr(CONFIG)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"listen": ["x"]}', CONFIG.dump().replace("4711", '"http"')])
def test_an_invalid_config_is_an_error(text):
    """A file that is empty, partial or of another kind starts no proxy."""
    with pytest.raises(ValueError, match=r"."):
        ProxyConfig.load(text)


def test_keys_of_clients_are_stored_and_not_logged():
    """They are in the file, in no repr, and a config without any reads as before there were keys."""
    config = attrs.evolve(CONFIG, keys=("client-key",))
    assert ProxyConfig.load(config.dump()) == config
    assert "client-key" not in repr(config)
    assert "keys" not in json.loads(CONFIG.dump())


def test_an_engine_of_no_cluster_has_the_config_of_older_versions():
    """So that their proxies continue; one that follows nodes is another, and keeps the file's path."""
    config = attrs.evolve(CONFIG, networks="/state/admitted-networks.json")
    assert ProxyConfig.load(config.dump()) == config
    assert "networks" not in json.loads(CONFIG.dump())
