"""The tests of a module stand where the module stands: `k8s/wire/names.py`, `tests/k8s/wire/test_names.py`."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

import llmkube

TESTS: Final = Path(__file__).parent
SOURCES: Final = Path(llmkube.__file__).parent
BRANCHES: Final = (
    ast.If, ast.IfExp, ast.For, ast.While, ast.Match, ast.Try, ast.BoolOp, ast.comprehension,
)  # fmt: skip
FEW: Final = 10
"""A module with fewer branches decides nothing that the tests of its users leave open."""

SHOWN_BY: Final[Mapping[str, str]] = {
    # what a kube-apiserver answered, field by field
    "tests/contracts": """
        apiserver/fields/last_applied apiserver/fields/managed_fields apiserver/kinds/scale
        apiserver/kinds/service_families apiserver/protocol/list_query apiserver/protocol/openapi_names
        apiserver/protocol/request_bodies apiserver/protocol/responses apiserver/protocol/server_info
        apiserver/schema/parts apiserver/schema/structural apiserver/values/go_text
        apiserver/values/json_values apiserver/values/label_requirements apiserver/values/metadata
        apiserver/values/name_rules apiserver/values/selectors apiserver/writes/apply_planner apiserver/writes/deletion
        apiserver/writes/garbage_collector apiserver/writes/preconditions apiserver/writes/preparation
        apiserver/writes/request_objects apiserver/writes/rest_handlers apiserver/writes/write_options
        apiserver/writes/write_planner""",
    "tests/apiserver/schema/test_cel.py": """apiserver/schema/cel_evaluator apiserver/schema/cel_functions
        apiserver/schema/cel_rules""",
    "tests/base/http/test_client.py": "base/http/pool base/http/streamed_response",
    "tests/base/http/test_server.py": "base/http/connection base/http/exchange base/http/listen",
    "tests/cli/job/test_termination_message.py": "k8s/wire/termination_message",
    "tests/cli/commands/inference/test_chat_turns.py": "cli/commands/inference/chat",
    "tests/cli/commands/inference/test_tcp_proxy.py": "cli/commands/inference/port_forward",
    "tests/cli/test_config.py": "cli/options",
    "tests/cli/commands/services/test_top.py": "cli/commands/services/ps",
    "tests/mac/test_guide.py": "cli/commands/programs/background/agent_commands",
    "tests/mac/test_daemon.py": "cli/commands/programs/background/launchd_user",
    # a model of an Ollama over time, between its API and the processes that the kernel shows
    "tests/cli/daemon_engine/ollama/test_keeper.py": """
        programs/daemon_engine/keeper programs/daemon_engine/keeping programs/daemon_engine/unloading
        programs/daemon_engine/ollama/daemon_api programs/daemon_engine/ollama/witness""",
    "tests/cli/daemon_engine/ollama/test_program.py": "programs/daemon_engine/ollama/weights",
    "tests/cli/test_ollama_library.py": "programs/daemon_engine/ollama/pull_room",
    # a model of an oMLX over time
    "tests/cli/daemon_engine/omlx/test_model.py": "programs/daemon_engine/omlx/daemon_api",
    "tests/e2e/test_up.py": "cli/commands/programs/up programs/one_machine/run",
    "tests/controller/test_operator.py": "controller/informers controller/reconcile/models k8s/leases/host_monitor",
    "tests/controller/reconcile/test_routers.py": "controller/reconcile/pod_routers",
    "tests/controller/status/test_inspection.py": "controller/status/job_result",
    "tests/cli/commands/programs/router_host/test_router_host.py": "programs/router_host/hosted_router",
    "tests/e2e/test_router.py": "cli/commands/router/routing_file",
    "tests/e2e/test_router_workers.py": "cli/commands/router/worker_processes",
    # a router in memory, between clients and backends that a script plays
    "tests/router/proxy/test_faults.py": "router/dispatch/attempt router/dispatch/backend_call",
    "tests/router/proxy/test_continuations.py": "router/dispatch/next_engine",
    "tests/router/proxy/test_queue.py": "router/dispatch/queued_call",
    "tests/router/proxy/test_attempt_charges.py": "router/dispatch/attempt_charges",
    "tests/router/proxy/test_handler.py": """
        router/proxy/listed_models router/proxy/shadows router/proxy/standing""",
    "tests/router/auth/test_token_checker.py": "router/auth/token_claims router/auth/token_form",
    "tests/router/proxy/test_live_config.py": "router/auth/key_files",
    "tests/k8s/auth/test_transport.py": "k8s/auth/tls",
    "tests/k8s/test_client.py": "k8s/response",
    # every field of a spec, for every runtime
    "tests/runtimes/test_golden_plans.py": """
        runtimes/llama_fields runtimes/container/builder runtimes/container/llamacpp runtimes/container/ollama
        runtimes/container/sglang runtimes/container/vllm""",
    "tests/weights/download/test_downloader.py": """
        weights/download/guarded_transport weights/download/receiver weights/download/redirects
        weights/download/resolver weights/download/retry weights/download/transfer""",
    # what llama.cpp allocates, measured
    "tests/weights/estimate/test_sizing.py": """
        weights/estimate/attention weights/estimate/compute_buffer weights/estimate/graph_builder""",
    "tests/weights/store/test_cache.py": "weights/store/index",
    # the real agent under a virtual clock
    "tests/sim": """
        supervisor/agent supervisor/cluster/claim_manager supervisor/service/attempt supervisor/service/runner""",
}
"""Modules without a test file of their own, by what shows that they do right."""


def deciding() -> Iterator[str]:
    """The modules with decisions, as paths without a suffix."""
    for path in sorted(SOURCES.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if not path.name.startswith("__") and sum(isinstance(node, BRANCHES) for node in nodes) >= FEW:
            yield path.relative_to(SOURCES).with_suffix("").as_posix()


def has_tests(module: str) -> bool:
    path = Path(module)
    return (TESTS / path.parent / f"test_{path.name}.py").exists()


def test_each_module_with_decisions_has_tests_of_its_name():
    """Or it stands in the list of those that something else shows, where nothing else stands."""
    listed = " ".join(SHOWN_BY.values()).split()
    untested = [module for module in deciding() if not has_tests(module)]
    assert [module for module in untested if module not in listed] == []
    assert [module for module in listed if module not in untested] == []


@pytest.mark.parametrize("place", SHOWN_BY)
def test_what_shows_it_is_there(place: str):
    """The tests that the list names exist."""
    assert (TESTS.parent / place).exists()


def test_no_name_of_tests_repeats_its_folder():
    """`tests/pressure/test_agent.py`, and not `test_pressure_agent.py`, unless a module has that name."""
    modules = {path.relative_to(SOURCES).with_suffix("").as_posix() for path in SOURCES.rglob("*.py")}
    for path in TESTS.rglob("test_*.py"):
        folder = path.relative_to(TESTS).parent
        mirrored = (folder / path.stem.removeprefix("test_")).as_posix() in modules
        assert mirrored or not path.name.startswith(f"test_{folder.name}_"), path
