import datetime

import pytest

from cli.cli_objects import condition, model, service
from llmkube.cli.view import output

NOW = datetime.datetime(2026, 1, 1, 0, 3, 20, tzinfo=datetime.UTC)


def test_columns_are_aligned():
    """Columns are as wide as their widest cell, empty cells are marked, and no line ends in spaces."""
    assert output.table(("NAME", "PHASE"), [("a", "Ready"), ("longer", ""), ("x\ny", "Failed")]).splitlines() == [
        "NAME    PHASE",
        "a       Ready",
        "longer  <none>",
        "x y     Failed",
    ]


def test_control_characters_do_not_reach_the_terminal():
    """An object's text cannot move the cursor or change colours; line breaks and tabs stay."""
    assert output.printable("a\x1b[31mb\x07\n\tc\x9bd\u202ee") == "a�[31mb�\n\tc�d�e"


def test_a_service_in_one_line():
    """The row shows ready and desired replicas, and the reason if they differ."""
    ready = service("chat", phase="Ready", readyReplicas=1, desiredReplicas=1, endpoint="http://x")
    assert output.service_row(ready, None, NOW) == ("chat", "chat", "Ready", "1/1", "", "3m20s")
    failed = service("chat", condition("Available", False, "NoHost"), phase="Pending")
    for known in (None, model()):
        assert output.service_row(failed, known, NOW) == ("chat", "chat", "Pending", "0/1", "NoHost", "3m20s")


@pytest.mark.parametrize(
    ("acceleration", "shown"),
    [
        (None, "cuda"),
        ({"device": "CPU", "layersOffloaded": 0, "layersTotal": 33}, "cpu"),
        ({"device": "CUDA0,CUDA1", "layersOffloaded": 33, "layersTotal": 33}, "cuda"),
        ({"device": "Vulkan0", "layersOffloaded": 20, "layersTotal": 33}, "vulkan 20/33"),
        ({"device": "NEW0", "layersOffloaded": 33}, "cuda"),
    ],
)
def test_a_service_runs_where_its_engine_has_put_the_layers(acceleration, shown):
    status = {"acceleration": acceleration} if acceleration else {}
    assert output.runs_on(service("chat", **status), model(accelerator="cuda")) == shown


def test_the_agents_reason_wins_if_it_is_more_specific():
    """InsufficientMemory wins over the controller's reason in the plain column and in `-o wide`."""
    words = "needs 5.1 GiB, and 2.0 GiB are free"
    waiting = service(
        "chat",
        condition("Loaded", False, "InsufficientMemory", words),
        condition("Available", False, "NoReadyReplicas", "no replica answers"),
        condition("Progressing", True, "Creating", "on its way"),
        phase="Creating",
    )
    held = model("chat", condition("Fetched", True, "Fetched"))
    assert output.service_row(waiting, held, NOW)[4] == "InsufficientMemory"
    assert output.service_wide_cells(waiting, held)[-1] == words


def test_serving_engine_is_shown_instead_of_the_requested_one():
    """Build and weights format are shown if known; without an engine, the runtime of the status."""
    ready = service("chat", phase="Ready", engine={"runtime": "mlx-lm", "build": "0.30.1", "weightsFormat": "mlx"})
    assert output.service_wide_cells(ready, None)[1] == "mlx-lm 0.30.1 (mlx)"
    old = service("chat", phase="Ready", engine={"runtime": "ollama"})
    assert output.service_wide_cells(old, None)[1] == "ollama"
    in_pods = service("chat", phase="Ready", runtime="vllm")
    assert output.service_wide_cells(in_pods, None)[1] == "vllm"
    chosen_by_its_host, new = service("chat", phase="Pending"), service("chat")
    assert [output.service_wide_cells(each, None)[1] for each in (chosen_by_its_host, new)] == ["", "llamacpp"]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_fits_a_terminal(width):
    """The widest cells are cut, headings never."""
    rows = [("a-very-long-name-of-a-service", "and-of-its-model-which-is-longer-still", "Ready", "x")]
    lines = output.table(("NAME", "MODEL", "PHASE", "AGE"), rows, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["NAME", "MODEL", "PHASE", "AGE"]
    assert "…" in lines[1]
    assert "…" not in output.table(("NAME", "MODEL", "PHASE", "AGE"), rows)


FURTHER = ("ENDPOINT", "RUNTIME", "QUEUE")
CELLS = (
    ("chat", "Ready", "http://127.0.0.1:8080/v1/chat/completions", "ollama 0.17.4 (gguf)", ""),
    (
        "a-name-that-is-rather-long-for-a-terminal-of-sixty-columns",
        "Pending",
        "",
        "llamacpp with a build of very many words (gguf)",
        "3",
    ),
)


@pytest.mark.parametrize("width", [None, 200])
def test_wide_table_is_one_table_if_it_fits(width):
    """A pipe has no width limit."""
    found = output.wide_table(("NAME", "PHASE"), FURTHER, CELLS, width)
    assert found == output.table(("NAME", "PHASE", *FURTHER), CELLS)


@pytest.mark.parametrize("width", [60, 80])
def test_further_columns_go_below_their_row_if_the_line_is_too_short(width):
    """They are whole and in column order, without empty ones; only a single long word may exceed the width."""
    lines = output.wide_table(("NAME", "PHASE"), FURTHER, CELLS, width).split("\n")
    assert [line.split() for line in lines[:2]] == [["NAME", "PHASE"], ["chat", "Ready"]]
    assert lines[2:4] == ["  endpoint  http://127.0.0.1:8080/v1/chat/completions", "  runtime   ollama 0.17.4 (gguf)"]
    assert not [line for line in lines if len(line) > width and len(line.split()) > 1]
    assert any(CELLS[1][0] in line for line in lines)  # also where the row has cut it
    text = " ".join(" ".join(lines).split())
    assert text.endswith("runtime llamacpp with a build of very many words (gguf) queue 3")


def test_a_model_in_one_line():
    """The row shows the file's size and architecture once they are known."""
    known = model(phase="Ready", size="1.0 GiB", gguf={"architecture": "llama"})
    assert output.model_row(known, NOW) == ("chat", "Fetched", "1.0 GiB", "cpu", "llama", "3m20s")
    assert output.model_row(model(), NOW) == ("chat", "", "", "cpu", "", "3m20s")


@pytest.mark.parametrize(
    ("timestamp", "age"), [("", ""), (None, ""), ("yesterday", "<invalid>"), ("2026-01-01T00:00:00", "<invalid>")]
)
def test_odd_timestamps_do_not_break_a_table(timestamp, age):
    """A missing timestamp has no age; a malformed one is <invalid>."""
    assert output.age(timestamp, NOW) == age


def test_closed_pipe_is_no_error(monkeypatch):
    """Printing into a closed pipe does not end a serving program."""

    def gone(text):
        raise BrokenPipeError

    monkeypatch.setattr("llmkube.cli.view.output.click.echo", gone)
    output.echo("hello")


def test_prose_breaks_between_words_on_a_terminal_alone(monkeypatch):
    """Long lines are folded to the terminal's width; a pipe gets them whole, for grep."""
    monkeypatch.setenv("COLUMNS", "12")
    assert output.wrapped("one two three four\nx") == "one two three four\nx"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert output.wrapped("one two three four\nx") == "one two\nthree four\nx"
    assert output.wrapped("   int x;\x1b") == "   int x;�"
