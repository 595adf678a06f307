"""What may be outside of this network is not local."""

import pytest

from llmkube.router.config.local_address import stays_here


@pytest.mark.parametrize(
    "url",
    [
        "http://10.1.2.3:8080/v1",
        "https://192.168.1.9",
        "http://172.31.0.1/",
        "http://127.0.0.1:1",
        "http://[::1]:8080/v1",
        "http://[fd00::1]/v1",
        "http://[::ffff:10.0.0.1]/",
        "http://100.100.1.1/",
        "http://litellm:4000",
        "http://notlocal",
        "http://litellm.ml.svc:4000",
        "http://litellm.ml.svc.cluster.local:4000/v1",
        "http://studio.local:8080",
        "http://localhost:8080",
        "http://gateway.internal/",
        "http://LiteLLM.ML.SVC.",
    ],
)
def test_what_only_this_network_answers_for(url):
    """Private addresses, names of the cluster, and names that no server of the Internet has."""
    assert stays_here(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://api.openai.com/v1",
        "https://8.8.8.8",
        "https://172.32.0.1",
        "https://10.0.0.1.example.com",
        "https://svc.example.com",
        "http://0x08080808/",
        "https://api.openai.com/?x=.svc",
        "https://user@api.openai.com",
        "https://127.0.0.1@api.openai.com/",
        "https://[2001:db8::1]/",
        "https://[::ffff:8.8.8.8]/",
        "https://169.254.169.254/",
        "https://0.0.0.0/",
        "https://167772161/",
        "https://0x7f000001.example",
        "",
    ],
)
def test_what_may_be_anywhere(url):
    """A public address, a public name, a number that some resolvers read as an address."""
    assert not stays_here(url)
