"""Compile a ModelRouter as a user writes it, and decide about one request."""

import yaml

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.router.config.compile_router import ResolvedService, compile_router
from llmkube.router.policy.decision import decide
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import Principal, facts_of

BACKENDS = """
backends:
- name: mac
  inferenceServiceRef: { name: phi-4-mini }
  capabilities: [chat]
- name: cloud
  external: { provider: openai, model: gpt-5, credentialsSecretRef: { name: openai-key } }
  capabilities: [chat, vision]
"""


def compiled(text, *, missing=()):
    spec = yaml.safe_load(text)
    body = {"metadata": {"name": "front", "namespace": "ml"}, "spec": spec}

    def resolve(name):
        return None if name in missing else ResolvedService(base_url=f"http://{name}.ml.svc:8080/v1")

    return compile_router(decode(ModelRouter, body), resolve, keys_folder="/keys")


def errors(text):
    return "\n".join(compiled(text).errors)


def ask(config, head=None, body=None, *, team="", measured=None, pick=0.0, load=None):
    """Decide about one request, as the data path does."""
    facts = facts_of(config, head or {}, body or {"model": "any"}, Principal(team=team))
    permits = permits_for(config, facts)
    return decide(config, facts, permits, first_byte_seconds=measured or {}, pick=pick, load=load or {})


def order(config, head=None, body=None, **more):
    return [permit.backend.name for permit in ask(config, head, body, **more).order]


def running(text, **more):
    found = compiled(text, **more)
    assert found.errors == ()
    return found.config
