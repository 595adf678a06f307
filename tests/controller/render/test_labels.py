"""The digest of a manifest tells any two apart."""

from controller.podobjects import plan, pod_service
from llmkube.controller.render.labels import DIGEST
from llmkube.controller.render.manifests import kubernetes_service


def test_the_digest_is_of_all_that_the_manifest_says():
    """Another label makes another digest; the digest itself is no part of it."""
    one, other = kubernetes_service(pod_service(), plan()), kubernetes_service(pod_service(modelRef="other"), plan())
    assert one["metadata"]["annotations"][DIGEST] != other["metadata"]["annotations"][DIGEST]
