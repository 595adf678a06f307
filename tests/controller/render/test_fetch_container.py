"""The container that fetches gets the source unchanged."""

from controller.podobjects import SETTINGS, SHA, cluster_model
from llmkube.controller.render.jobs import fetch_job


def test_a_source_reaches_its_container_as_it_is():
    """Kubernetes replaces `$(NAME)` and `$$` in arguments and variables: literal ones are escaped."""
    odd = cluster_model("s3://bucket/$(HOME)/$$a.gguf", sha256=SHA)
    [container] = fetch_job(odd, SETTINGS)["spec"]["template"]["spec"]["containers"]
    assert container["env"][0] == {"name": "LLMKUBE_SOURCE", "value": "s3://bucket/$$(HOME)/$$$$a.gguf"}
    files = cluster_model("org/repo", files=["$(HOME).gguf", "$b.gguf"])
    [container] = fetch_job(files, SETTINGS)["spec"]["template"]["spec"]["containers"]
    named = {container["args"][at + 1] for at, word in enumerate(container["args"]) if word in ("--file", "--beside")}
    assert named == {"$$(HOME).gguf", "$$b.gguf"}
