"""`llmkube restart`: the time of the restart in the spec, for hosts and pods alike."""

from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key

DEMO = Key("default", "demo")


def test_each_restart_is_another_spec(run):
    """The annotation of the pods gets a time, and the next restart another one, also within the same second."""
    seen = []

    async def look(client):
        seen.append((await client.get(InferenceService, DEMO)).spec.pod_annotations)

    for _ in range(2):
        done = run("restart", "demo", "--no-wait", after=look)
        assert (done.exit_code, done.output) == (0, "InferenceService default/demo restarts\n")
    assert seen[0].keys() == {"kubectl.kubernetes.io/restartedAt"}
    assert seen[0] != seen[1]


def test_what_is_stopped_or_not_there_is_not_restarted(run):
    """A stopped service says what starts it, an unknown one where it was looked for."""

    async def stop(client):
        await client.patch(InferenceService, DEMO, {"spec": {"replicas": 0}})

    done = run("restart", "demo", prepare=stop)
    assert (done.exit_code, "`llmkube scale demo 1` starts it" in done.output) == (1, True)
    assert run("restart", "nope").exit_code == 3
