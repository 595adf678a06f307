"""What is there is compared with what is wanted as an API server would have it, and no further."""

import pytest

from controller.cluster import open_cluster
from controller.podobjects import plan, pod_service
from llmkube.controller.children import Children, NameTakenError, fits
from llmkube.controller.render.workload import front
from llmkube.k8s.builtins import Service
from llmkube.k8s.errors import ConflictError
from llmkube.k8s.resource import Key


@pytest.mark.parametrize(
    ("wanted", "there", "same"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": {}}, {}, True),
        ({"a": []}, {"a": None}, True),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "y": 2}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [1]}, {"a": [1, 2]}, False),
        ({"a": {"b": 1}}, {"a": "text"}, False),
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}, True),
        ({"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "2"}}, False),
        ({"requests": {"memory": "1024Mi"}}, {"requests": {"memory": "1Gi"}}, True),
        ({"sizeLimit": "1024Mi"}, {"sizeLimit": "1Gi"}, True),
        ({"limits": {"cpu": "1"}}, {"limits": {}}, False),
        ({"env": [{"value": "1000m"}]}, {"env": [{"value": "1"}]}, False),
    ],
)
def test_additions_and_spellings_are_no_difference(wanted, there, same):
    """What is there besides does not count, amounts go by value, and everything else has to be equal."""
    assert fits(wanted, there) is same


class Recording:
    """A client that remembers how often it was asked to apply."""

    def __init__(self, client):
        self.client = client
        self.forced = []

    async def apply(self, kind, manifest, *, field_manager, force=True, subresource=""):
        self.forced.append(force)
        return await self.client.apply(kind, manifest, field_manager=field_manager, force=force)

    async def delete(self, kind, key, **options):
        await self.client.delete(kind, key, **options)


async def owner(cluster, **spec):
    """The service as the server has it: what nobody owns would be collected."""
    await cluster.create_service(**spec)
    return await cluster.service()


async def test_a_lagging_cache_causes_no_second_write(autojump_clock):
    """What was made is known from the server's answer, before any watch has told of it."""
    async with open_cluster() as cluster:
        client = Recording(cluster.client)
        children = Children(client, Service)
        manifest = front(await owner(cluster), plan())
        first = await children.ensure(manifest)
        assert await children.ensure(manifest) == first
        assert client.forced == [False]


async def test_who_wrote_in_between_is_not_overwritten(autojump_clock):
    """A change onto an object that is newer than the one compared is a conflict, and changes nothing."""
    async with open_cluster() as cluster:
        children = Children(cluster.client, Service)
        await children.ensure(front(await owner(cluster), plan()))
        await cluster.client.patch(Service, Key("ml", "chat"), {"metadata": {"labels": {"seen": "no"}}})
        with pytest.raises(ConflictError):
            await children.ensure(front(await owner(cluster, endpoint={"port": 9000}), plan()))
        assert (await cluster.client.get(Service, Key("ml", "chat"))).spec.ports[0].port == 8080


async def test_a_predecessors_object_is_left_to_the_collector(autojump_clock):
    """An object with another owner of the same name is neither changed nor deleted."""
    async with open_cluster() as cluster:
        children = Children(cluster.client, Service)
        await children.ensure(front(await owner(cluster), plan()))
        with pytest.raises(NameTakenError, match="another InferenceService"):
            await children.ensure(front(pod_service(uid="new"), plan()))
        await children.remove(Key("ml", "chat"), "new")
        assert await cluster.client.get(Service, Key("ml", "chat"))
