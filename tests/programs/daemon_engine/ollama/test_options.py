"""The command line of the program, and where it looks for Ollama."""

import pytest

from llmkube.programs.daemon_engine.ollama.options import DaemonAddressError, daemon_url, parse, refuse_elsewhere

LEAST = ["--model", "/m/a.gguf", "--alias", "chat", "--service", "default/chat", "--port", "8001"]


def test_llama_servers_names_are_taken():
    """An agent writes the same words for both."""
    options = parse([*LEAST, "--ctx-size", "4096", "--n-gpu-layers", "0", "--api-key-file", "/k"], {})
    assert options.store_name.startswith("llmkube/default_chat:")
    assert (options.port, str(options.keys)) == (8001, "/k")
    assert options.parameters == {"num_ctx": 4096, "num_gpu": 0}
    assert options.library_name == ""
    assert options.daemon == "http://127.0.0.1:11434"


def test_a_model_of_the_library_is_named_by_its_url():
    """Without a context Ollama's own default counts."""
    options = parse(["--model", "ollama://llama3.2:1b", *LEAST[2:]], {"OLLAMA_HOST": "0.0.0.0:1234"})
    assert options.library_name == "llama3.2:1b"
    assert options.parameters == {}
    assert options.daemon == "http://127.0.0.1:1234"


@pytest.mark.parametrize(
    ("changed", "environ", "said"),
    [
        (("--service", "chat"), {}, "write NAMESPACE/NAME"),
        (("--model", "ollama://"), {}, "ollama://NAME:TAG"),
        (("--port", "1"), {"OLLAMA_HOST": "10.0.0.7"}, "not on this machine"),
        (("--threads", "4"), {}, "--threads"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(capsys, changed, environ, said):
    """Nothing is taken and ignored."""
    with pytest.raises(SystemExit) as end:
        parse([*LEAST, *changed], environ)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("said", ["mac.local:80", "10.0.0.7", "[fe80::1]:11434"])
def test_a_server_of_another_machine_is_refused(said):
    """Its memory is not this host's, and its processes are not seen here."""
    with pytest.raises(DaemonAddressError, match=r"127\.0\.0\.1:PORT"):
        refuse_elsewhere(daemon_url({"OLLAMA_HOST": said}))


@pytest.mark.parametrize("said", ["", "0.0.0.0:1", "[::1]:1", "localhost", "127.0.0.1:99"])
def test_a_server_of_this_machine_is_not(said):
    """All of these are loopback, or what is asked there."""
    refuse_elsewhere(daemon_url({"OLLAMA_HOST": said}))
