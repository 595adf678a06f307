import datetime

import attrs
import pytest

from cli.cli_objects import condition, model, service
from llmkube.cli.view.describe import (
    StatusView,
    describe_object,
    describe_service,
    host_lines,
    last_error,
    next_retry,
    progress,
    summary,
    waits_for,
)
from llmkube.cli.view.locations import Engine, Host
from llmkube.cli.view.output import service_wide_cells
from llmkube.cli.view.progress import detail_of
from llmkube.k8s.crd.model import GGUFStatus
from llmkube.k8s.wire.service_health import service_health

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CRASH = condition(
    "Loaded",
    False,
    "CrashLoopBackOff",
    "3 failures in a row; next attempt at 2026-01-01T00:00:12Z: exit code 1\nerror: no memory",
)
FETCHING = condition("Fetched", False, "Fetching", "downloading: 42 % of 4.5 GiB, 12.0 MiB/s, 3m left")
FETCHED = condition("Fetched", True, "Fetched", "")


def spec(found, **changes):
    return attrs.evolve(found, spec=attrs.evolve(found.spec, **changes))


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (StatusView(service(), None), "a Model named chat"),
        (StatusView(service(), model()), "the controller to process it"),
        (
            StatusView(service("chat", condition("Loaded", False, "Released", "let go")), model()),
            "the controller to process it",
        ),
        (StatusView(service(), model("chat", FETCHING)), "the Model's file"),
        (StatusView(spec(service(), replicas=0), model()), "nothing: spec.replicas is 0; `llmkube scale` starts it"),
        (StatusView(spec(service(), suspend=True), model()), "nothing: spec.suspend is true"),
        (
            StatusView(
                service("chat", condition("Loaded", False, "Loading", "the engine is loading")), model("chat", FETCHED)
            ),
            "the engine is loading",
        ),
        (
            StatusView(
                service("chat", condition("Available", False, "NoHost")),
                model(accelerator="metal"),
                hosts=(Host("a", frozenset({"cpu"})),),
            ),
            "a host that serves metal; live hosts serve cpu",
        ),
        (StatusView(service("chat", CRASH), model("chat", FETCHED)), None),
        (StatusView(service("chat", condition("Available", True, "InferenceReady"), phase="Ready"), model()), None),
    ],
)
def test_pending_step_is_named(scene, words):
    """Each state names the one thing that has to happen next; Ready and failures name none."""
    assert waits_for(scene) == (words or "")


def test_crash_and_retry_are_shown_apart():
    """The agent's message is split into error, time of the next attempt, and the engine's output."""
    crashing = service("chat", CRASH, phase="Failed")
    health = service_health(crashing, model())
    assert last_error(crashing, model()) == "CrashLoopBackOff: exit code 1"
    assert next_retry(health, NOW).startswith("in 12.0 s (")
    assert next_retry(health, NOW + datetime.timedelta(minutes=1)).startswith("now (")
    assert not next_retry(service_health(service("chat", condition("Loaded", True, "Loaded")), model()), NOW)
    shown = describe_service(StatusView(crashing, model("chat", FETCHED)), NOW)
    assert "\n\nThe engine's last lines:\n  error: no memory\n\n" in shown
    assert summary(crashing, model("chat", FETCHED)) == "Failed: CrashLoopBackOff: exit code 1"


def test_outdated_engine_is_reported_with_the_reason():
    """A failing replacement is shown with its engine's error while the service is Ready."""
    words = "the engine of the older spec keeps serving; exit code 1\nerror: no memory"
    failing = condition("UpToDate", False, "CrashLoopBackOff", words)
    found = service("chat", condition("Loaded", True, "Loaded"), failing, phase="Ready")
    shown = describe_service(StatusView(found, model("chat", FETCHED)), NOW)
    assert "CrashLoopBackOff: the engine of the older spec keeps serving; exit code 1" in shown
    assert "  error: no memory" in shown


def test_serving_engine_is_shown_next_to_the_requested_runtime():
    """The engine has its own line while it serves, and none before."""
    engine = {"runtime": "mlx-lm", "build": "0.30.1", "weightsFormat": "mlx"}
    shown = describe_service(StatusView(service("chat", phase="Ready", engine=engine), model()), NOW)
    assert "\n  runtime      llamacpp" in shown
    assert "\n  engine       mlx-lm 0.30.1 (mlx) serves\n" in shown
    assert "engine       " not in describe_service(StatusView(service("chat", phase="Pending"), model()), NOW)


def test_verdict_on_an_older_generation_is_ignored():
    refused = condition("Accepted", False, "Invalid", "spec.extraArgs: no") | {"observedGeneration": 1}
    found = service("chat", refused)
    edited = attrs.evolve(found, metadata=attrs.evolve(found.metadata, generation=2))
    assert last_error(found, model()) == "Invalid: spec.extraArgs: no"
    assert last_error(edited, model()) == ""


def test_a_fetch_shows_its_progress_and_its_error():
    """A download in progress shows no error; a failed one shows the error only."""
    coming = model("chat", FETCHING)
    assert progress(coming) == "downloading: 42 % of 4.5 GiB, 12.0 MiB/s, 3m left"
    assert last_error(service(), coming) == ""
    missing = model("chat", condition("Fetched", False, "FileNotFound", "there is no file /m.gguf\nat all"))
    assert progress(missing) == ""
    assert last_error(service(), missing) == "FileNotFound: there is no file /m.gguf"
    assert "last error   FileNotFound: there is no file /m.gguf\n" in describe_object(missing, NOW)


def test_context_in_effect_is_shown_next_to_the_requested_one():
    """`status` and `list` show the context in effect; `status` also shows the requested one and ignored fields."""
    facts = {"architecture": "llama", "contextLength": 512}
    ignored = condition("SpecHonoured", False, "FieldsIgnored", "accepted, but without effect on a host: spec.x")
    asked, of = spec(service("chat", ignored), context_size=8192), model("chat", FETCHED, gguf=facts)
    text = describe_service(StatusView(asked, of), NOW)
    assert "runtime      llamacpp, 512 tokens of context (8192 requested)" in text
    assert "note         accepted, but without effect on a host: spec.x" in text
    assert service_wide_cells(asked, of)[2] == "512"
    assert "llamacpp, 8192 tokens of context\n" in describe_service(StatusView(asked, model("chat", FETCHED)), NOW)
    assert "llamacpp, 512 tokens of context\n" in describe_service(StatusView(spec(asked, context_size=None), of), NOW)


def test_hosts_are_those_in_slices_else_those_that_report():
    """Addresses win over reports; a host without a current Lease is marked; a stopped service has none."""
    engines = (Engine("mac", "10.0.0.5", 51234, True), Engine("", "fd00::5", 1, False))
    assert host_lines(StatusView(service(), None, engines)) == [
        "mac, 10.0.0.5:51234",
        "unknown, [fd00::5]:1 (not ready)",
    ]
    reported = StatusView(service(), None, (), ("mac", "mini"), (Host("mac", frozenset()),))
    assert host_lines(reported) == ["mac", "mini (its Lease was not renewed)"]
    assert host_lines(attrs.evolve(reported, hosts=None)) == ["mac", "mini"]
    assert host_lines(StatusView(service(phase="Stopped"), None, (), ("mac",))) == []


def test_a_source_never_shows_its_password():
    """Credentials and query of a URL are not printed."""
    from llmkube.cli.view.output import shown_source

    secret = model()
    secret = spec(secret, source="https://ann:hunter2@example.org/m.gguf?sig=abc")
    assert "source       https://example.org/m.gguf\n" in describe_object(secret, NOW)
    assert shown_source("s3://bucket/key") == "s3://bucket/key"
    assert shown_source("nonsense://x?y") == "nonsense://x"


def test_conditions_have_one_order_and_print_each_sentence_once():
    """Conditions are in the order of events, however they were written; a message is printed once."""
    message = "1 of 1 replicas ready"
    written = [
        condition("Degraded", False, "InferenceReady", message),
        condition("Available", True, "InferenceReady", message),
        condition("Published", False, "NotStated", "") | {"status": "Unknown"},
        condition("Loaded", True, "Loaded", "loaded in 0.5 s"),
        condition("Accepted", True, "Accepted", "the spec can be served on this machine"),
    ]
    shown = [
        describe_service(StatusView(service("chat", *order, phase="Ready"), model("chat", FETCHED)), NOW)
        for order in (written, list(reversed(written)))
    ]
    assert shown[0] == shown[1]
    table = shown[0].partition("CONDITION")[2].splitlines()[1:]
    assert [line.split()[0] for line in table] == ["Accepted", "Loaded", "Available", "Degraded"]
    assert shown[0].count(message) == 1


def test_a_quantization_that_only_the_spec_has_is_shown():
    """Without a header, the Model's own value is shown as from the spec."""
    described = model("chat", FETCHED)
    described = spec(described, quantization="Q4_K_M")
    assert "quantization Q4_K_M (from the spec)\n" in describe_object(described, NOW)
    assert "model        chat (Q4_K_M)\n" in describe_service(StatusView(service(), described), NOW)
    known = attrs.evolve(described, status=model("chat", gguf={"quantization": "Q8_0", "architecture": "llama"}).status)
    assert "from the spec" not in describe_object(known, NOW)


def test_a_choice_among_quantizations_is_reported_after_the_download():
    """`status` and `deploy` name the chosen file; without a choice they print nothing about it."""
    fetched = condition("Fetched", True, "Fetched", "the file is on mac: Q4_K_M, one of 4 in o/r")
    found = model("chat", fetched, size="4.4 GiB")
    assert "\n  chosen       Q4_K_M, one of 4 in o/r\n" in describe_service(StatusView(service(), found), NOW)
    assert detail_of("fetch", service(), found) == "4.4 GiB, Q4_K_M, one of 4 in o/r"
    plain = model("chat", condition("Fetched", True, "Fetched", "the file is on mac"), size="4.4 GiB")
    assert "chosen" not in describe_service(StatusView(service(), plain), NOW)
    assert detail_of("fetch", service(), plain) == "4.4 GiB"


def test_a_guessed_size_is_said():
    """The memory of a model whose architecture is unknown is guessed, which its service and itself say."""
    found = model("chat", FETCHED)
    found = attrs.evolve(found, status=attrs.evolve(found.status, gguf=GGUFStatus(architecture="gemma9")))
    for text in (describe_service(StatusView(service(), found), NOW), describe_object(found, NOW)):
        assert "the architecture gemma9 is not known to LLMKube" in text
