"""Defer the replacement of busy pods until they are idle or a timeout expires, if the service requests that.

| reason for the replacement | idle timeout |
|---|---|
| an edit; no `rolloutPolicy`, or one with `force` | none: pods are replaced at once |
| an edit; `waitForIdle` | `idleTimeoutSeconds`; 0 means 300 |
| `maxPodLifetimeSeconds` has passed | `maxPodLifetimeIdleTimeoutSeconds`; unset means no limit |

Pods are replaced by a change of their template, never one by one, so that the Deployment keeps the service available.
"""

import datetime
from collections.abc import Sequence
from functools import partial

import attrs
import trio

from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.reconcile.pod_polling import IDLE_POLL_SECONDS, are_idle
from llmkube.controller.reconcile.workload_plans import find_prefix
from llmkube.controller.render.drain import IDLE_TIMEOUT_SECONDS, RetainedSettings
from llmkube.controller.render.labels import DRAIN_SECONDS, OUR_IMAGE, RESTARTED, TEMPLATE, queue_labels
from llmkube.controller.render.manifests import Manifests, WantedPods, group_name, render_manifests
from llmkube.controller.render.storage import Weights
from llmkube.controller.status.scale import desired_replicas, is_patched
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.resource import Key, is_controlled_by
from llmkube.k8s.wire.times import parse_timestamp, timestamp
from llmkube.k8s.workloads import Pod, Workload
from llmkube.runtimes.container.container_plan import ContainerPlan


def waits_for_idle(service: InferenceService) -> bool:
    """Whether an edit is deferred until no request is in flight."""
    policy = service.spec.rollout_policy
    return policy is not None and bool(policy.wait_for_idle) and not policy.force


def edit_idle_timeout_seconds(service: InferenceService) -> float:
    """Return how long an edit waits for replicas to be idle; 0 if it does not."""
    policy = service.spec.rollout_policy
    if policy is None or not waits_for_idle(service):
        return 0.0
    return float(policy.idle_timeout_seconds or IDLE_TIMEOUT_SECONDS)


def seconds_until_max_age(
    service: InferenceService, live: Workload, pods: Sequence[Pod], now: datetime.datetime
) -> float | None:
    """Return the seconds until the oldest pod of a service reaches its maximum age.

    None if the service sets no maximum, or while a rollout is in progress: ages are checked once all pods are ready.
    """
    lifetime, status = service.spec.max_pod_lifetime_seconds, live.status
    settled = (
        status.observed_generation >= live.metadata.generation
        and 0 < live.spec.replicas == status.replicas == status.updated_replicas == status.ready_replicas
    )
    created = [pod.metadata.creation_timestamp for pod in pods if not pod.metadata.deletion_timestamp]
    known = [moment for moment in map(parse_timestamp, created) if moment is not None]
    if lifetime is None or not settled or not known:
        return None
    return max(lifetime - (now - min(known)).total_seconds(), 0.0)


async def current_manifests(
    context: PodContext, service: InferenceService, plan: ContainerPlan, weights: Weights
) -> Manifests:
    """Return the desired objects of a service, with the replacement of its pods if it is due; record a deferral.

    While `records[…].deferred_since` is set, the Deployment must not be applied. The wait is measured from when this
    controller first saw the cause; its successor starts again.
    """
    key, spec, live = service.key, service.spec, deployment_of(context, service)
    record = context.records[key]
    annotations = live.metadata.annotations if live is not None else {}
    wanted = _manifests(context, service, plan, weights, annotations.get(RESTARTED, ""))
    if live is None or (spec.max_pod_lifetime_seconds is None and not waits_for_idle(service)):
        record.clear_deferral()
        return wanted
    pods = context.pods.pods_of_service(key)
    cause = "an edit"
    idle_timeout: float | None = edit_idle_timeout_seconds(service)
    if wanted.deployment["metadata"]["annotations"][TEMPLATE] == annotations.get(TEMPLATE):
        now = context.utcnow()
        remaining = seconds_until_max_age(service, live, pods, now)
        if remaining:
            context.queues.services.add_after(key, remaining)
        if remaining is None or remaining > 0:
            record.clear_deferral()
            return wanted
        cause, idle_timeout = "their age", spec.max_pod_lifetime_idle_timeout_seconds
        wanted = _manifests(context, service, plan, weights, timestamp(now))
    since = trio.current_time() if record.deferred_since is None else record.deferred_since
    expired = idle_timeout is not None and trio.current_time() - since >= idle_timeout
    if expired or not live.status.ready_replicas or not plan.busy_metrics or await are_idle(plan, pods):
        record.clear_deferral()
        return wanted
    record.deferred_since, record.deferral_reason = since, f"pods are replaced because of {cause} once they are idle"
    context.queues.services.add_after(key, IDLE_POLL_SECONDS)
    return wanted


def deployment_of(context: PodContext, service: InferenceService) -> Workload | None:
    """Return the Deployment or LeaderWorkerSet of a service; None if there is none that it owns."""
    live: Workload | None
    if service.spec.multi_node is not None:
        live = context.owned.groups.get(Key(service.key.namespace, group_name(service.key.name)))
    else:
        live = context.owned.deployments.get(service.key)
    return live if live is not None and is_controlled_by(live, service.metadata.uid) else None


def is_loading(live: Workload, replicas: int) -> bool:
    """Whether pods are still loading; not in a stuck rollout, which would block a node drain forever."""
    progress = [one for one in live.status.conditions if one.type == "Progressing"]
    return live.status.ready_replicas < replicas and not any(one.status == "False" for one in progress)


def _manifests(
    context: PodContext, service: InferenceService, plan: ContainerPlan, weights: Weights, restarted: str
) -> Manifests:
    """Return the objects of a service, rendered again only if one of their inputs has changed."""
    live = deployment_of(context, service)
    replicas = desired_replicas(service, live)
    rendered = None if live is not None and is_patched(service) else replicas  # a new Deployment would have 1 pod
    pods = WantedPods(rendered, weights, live is None or is_loading(live, replicas), restarted)
    retained = _retained_settings(live)
    if retained is not None and plan.key_check is not None:  # the key proxy is always upgraded with LLMKube
        retained = attrs.evolve(retained, image=context.workloads.image)
    template = live.metadata.annotations.get(TEMPLATE, "") if live is not None and retained is not None else ""
    settings = attrs.evolve(context.workloads, priority_class_prefix=find_prefix(context, service, live))
    meta, classes = service.metadata, settings.priority_class_prefix
    render = partial(render_manifests, service, settings=settings, pods=pods)

    def make() -> Manifests:
        images = (plan.image, plan.image_before) if plan.image_before else (plan.image,)
        for image in images if retained is not None else ():
            same = render(plan=attrs.evolve(plan, image=image), retained=retained)
            if same.deployment["metadata"]["annotations"][TEMPLATE] == template:
                return same
        return render(plan=plan)

    inputs = (
        meta.uid,
        meta.generation,
        queue_labels(service),
        service.spec.node_selector,
        plan,
        pods,
        classes,
        retained,
        template,
    )
    return context.records[service.key].manifests.get(inputs, make)


def _retained_settings(live: Workload | None) -> RetainedSettings | None:
    """Return the settings of serving pods that are retained as long as nothing else in their template changes.

    Otherwise an upgrade of LLMKube, an edit of the rollout policy, or the image for CPUs (`image_before`) would replace
    pods, and load their models again.
    """
    if live is None or not live.status.ready_replicas:
        return None
    image, seconds = (live.metadata.annotations.get(name, "") for name in (OUR_IMAGE, DRAIN_SECONDS))
    return RetainedSettings(image, int(seconds)) if image and seconds.isdecimal() else None
