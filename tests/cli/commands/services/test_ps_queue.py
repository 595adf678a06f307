"""`llmkube queue`: who waits for what others have."""

from llmkube.k8s.crd.inferenceservice import InferenceService


def service(name, priority, **status):
    async def write(client):
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"modelRef": "demo", "priority": priority}}
        await client.apply(InferenceService, body, field_manager="test")
        body = {"metadata": body["metadata"], "status": status}
        await client.apply(InferenceService, body, field_manager="test", subresource="status")

    return write


def condition(kind, reason):
    return {
        "type": kind,
        "status": "False",
        "reason": reason,
        "message": "x",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


async def three(client):
    await service("second", "high", phase="WaitingForGPU", queuePosition=2, waitingFor="2 of nvidia.com/gpu")(client)
    await service("first", "low", phase="WaitingForGPU", queuePosition=1, waitingFor="1 of nvidia.com/gpu")(client)
    short = [condition("Loaded", "InsufficientMemory")]
    await service("mac", "batch", phase="Creating", conditions=short)(client)


def test_the_line_for_gpus_comes_first_and_in_its_order(run):
    """Places in the line decide; what waits for memory has none, and says what it waits for."""
    done = run("queue", prepare=three)
    head, *rows = done.output.splitlines()
    assert head.split() == ["NAME", "QUEUE", "WAITING", "FOR", "PRIORITY", "SINCE"]
    assert [row.split()[:2] for row in rows] == [["first", "1"], ["second", "2"], ["mac", "<none>"]]
    assert rows[2].split()[2:4] == ["memory", "batch"]


def test_nothing_waits(run):
    """A service that only loads is no one that waits for others."""
    assert run("queue").output == "Nothing waits in default.\n"
    assert run("queue", "-A").output == "Nothing waits in any namespace.\n"
