import click
import pytest
from click.testing import CliRunner

from llmkube.cli.commands.services.field_flags import FLAGS, field_options, given_fields, put
from llmkube.k8s.fields import WireField


@pytest.mark.parametrize("field", FLAGS, ids=lambda each: each.flag)
def test_every_flag_sets_a_field(field):
    """Each path leads to a field of its kind, so a renamed field fails here."""
    assert isinstance(field.slot, WireField)
    assert field.slot.key == field.path.rpartition(".")[2]


def test_only_what_was_given_is_set():
    """A switch turned off and a number 0 are set; omitted flags are not."""
    seen = {}

    @click.command()
    @field_options(FLAGS)
    def command(**values):
        seen.update({field.path: value for field, value in given_fields(FLAGS, values).items()})

    args = ["--no-jinja", "--replicas", "0", "--extra-arg=-a", "--extra-arg", "b"]
    assert CliRunner().invoke(command, args).exit_code == 0
    assert seen == {"spec.jinja": False, "spec.replicas": 0, "spec.extraArgs": ["-a", "b"]}


def test_nested_fields_are_created():
    """Setting a deep field keeps its neighbours."""
    obj = {"spec": {"a": 1}}
    put(obj, "spec.b.c", 2)
    put(obj, "spec.b.d", 3)
    assert obj == {"spec": {"a": 1, "b": {"c": 2, "d": 3}}}
