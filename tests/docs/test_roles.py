"""The table of roles in docs/reference/security.md agrees with the rights that the programs declare."""

import re

import pytest

from docs.pages import ROOT
from llmkube.controller import rights as controller
from llmkube.k8s.builtins import EndpointSlice, Node, Secret
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.workloads import Deployment, Job
from llmkube.programs.gateway import rights as gateway
from llmkube.supervisor import rights as agent

WRITES = frozenset({"create", "update", "patch", "delete"})
READS = frozenset({"get", "list", "watch"})
ACTIONS = {
    "read Models and InferenceServices": ((Model, InferenceService), "", READS),
    "change them, except their status": ((Model, InferenceService), "", WRITES),
    "write their status": ((Model, InferenceService), "status", WRITES),
    "read Secrets": ((Secret,), "", READS),
    "issue and revoke keys (write the Secret)": ((Secret,), "", WRITES),
    "create Deployments and Jobs": ((Deployment, Job), "", frozenset({"create"})),
    "write EndpointSlices of services": ((EndpointSlice,), "", WRITES),
    "read nodes": ((Node,), "", READS),
}
COLUMNS = {"agent": agent.PROGRAM, "controller": controller.PROGRAM, "front door": gateway.PROGRAM}
OPT_IN = "granted ones"
WITHOUT = {"no", "mounted ones"}
"""Cells of a program that has no right in the API."""


def table():
    text = (ROOT / "docs" / "reference" / "security.md").read_text()
    lines = re.findall(
        r"^\|(.*)\|$", text[text.index("| action | administrator |") :].partition("\n\n")[0], re.MULTILINE
    )
    head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


@pytest.mark.parametrize("role", COLUMNS)
@pytest.mark.parametrize("action", ACTIONS)
def test_a_program_has_the_rights_that_the_table_shows(role, action):
    """`granted ones` is a right that an administrator grants by name; other cells than `no` are declared rights."""
    kinds, subresource, verbs = ACTIONS[action]
    needs = [
        one for one in COLUMNS[role].needs if one.kind in kinds and one.subresource == subresource and one.verbs & verbs
    ]
    cell = table()[action][role]
    assert bool(needs) == (cell not in WITHOUT)
    assert not needs or all(one.opt_in for one in needs) == (cell == OPT_IN)


def test_every_action_on_objects_is_compared():
    """The other rows are about requests, hosts and logs, for which a program declares no right."""
    others = {"use a model", "load, unload and pin models on a host", "choose programs, flags and folders of a host"}
    assert set(table()) == {*ACTIONS, *others, "read the audit log of a router"}
