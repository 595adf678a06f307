"""The digest distinguishes any two manifests."""

from controller.podobjects import plan, pod_service
from llmkube.controller.render.labels import DIGEST
from llmkube.controller.render.manifests import kubernetes_service


def test_the_digest_covers_the_whole_manifest():
    """Another label makes another digest; the digest itself is excluded."""
    one, other = kubernetes_service(pod_service(), plan()), kubernetes_service(pod_service(modelRef="other"), plan())
    assert one["metadata"]["annotations"][DIGEST] != other["metadata"]["annotations"][DIGEST]
