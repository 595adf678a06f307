"""Everything that an agent does to the API server, for its Role, and the identity of one host."""

from collections.abc import Collection
from typing import Final

import attrs

from llmkube.k8s import events
from llmkube.k8s.builtins import Endpoints, EndpointSlice, Lease, Node, Secret, Service, ServiceAccount
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.leases import host_monitor
from llmkube.k8s.rbac import APPLY, LIST_AND_WATCH, Permission, Program
from llmkube.k8s.wire.names import ADDRESSES_ANNOTATION, HOST_ACCOUNT_PREFIX

PROGRAM: Final = Program(
    "llmkube-agent",
    (
        *(Permission(kind, LIST_AND_WATCH) for kind in (Model, InferenceService)),
        *(Permission(kind, frozenset({"patch"}), subresource="status") for kind in (Model, InferenceService)),
        # Whether a service is gone of which only the claim of a dead host is left.
        Permission(InferenceService, frozenset({"get"})),
        # An object with the name of a service may belong to another owner, and is read before it is written.
        Permission(Service, APPLY | {"get"}),
        # Both forms: an agent whose settings have changed takes the other one's back.
        Permission(EndpointSlice, APPLY | {"delete"}),
        Permission(Endpoints, APPLY | {"get", "delete"}),
        # What an earlier agent on this host has left, and every ten minutes what another client has removed or changed.
        *(Permission(kind, frozenset({"list"})) for kind in (Service, EndpointSlice, Endpoints)),
        # Their networks need no key; an agent of one namespace has what `agent join` wrote instead.
        Permission(Node, LIST_AND_WATCH),
        # Its own Lease, and the claims: created, taken over, given up; those of all hosts are followed.
        Permission(Lease, APPLY | {"delete"}, place="system"),
        *host_monitor.PERMISSIONS,
        # The one that `Model.spec.sourceSecretRef` names, when its file has to be fetched; never listed, never watched.
        Permission(Secret, frozenset({"get"}), opt_in=True),
        *events.PERMISSIONS,
    ),
)


def host_program(host: str, networks: Collection[str]) -> Program:
    """Return the agent of one host: its own ServiceAccount, which may renew its own token.

    Args:
        host: What `host_id` returned.
        networks: Where its engines may be (CIDR); written on the account, where the policies read it.
    """
    name = f"{HOST_ACCOUNT_PREFIX}{host}"
    token = Permission(
        ServiceAccount, frozenset({"create"}), place="system", subresource="token", names=frozenset({name})
    )
    return attrs.evolve(
        PROGRAM,
        name=name,
        needs=(*PROGRAM.needs, token),
        annotations={ADDRESSES_ANNOTATION: ",".join(networks)},
    )
