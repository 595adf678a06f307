import argparse
import itertools
import operator

import pytest
import xllamacpp

from llmkube.programs.bundled_engine.llama_params import DEFAULT_PORT, FLAGS, Choice, Member, Switch, Value, apply
from llmkube.programs.bundled_engine.llama_server import parse

ROWS = [row for rows in FLAGS.values() for row in rows]
VALUES = [row for row in ROWS if isinstance(row, Value)]
SWITCHES = [row for row in ROWS if isinstance(row, Switch)]

# One value that differs from the default for each flag that takes neither a plain number nor a listed value
EXAMPLES = {
    "--model": "m.gguf", "--alias": "a,b", "--gpu-layers": "all", "--tensor-split": "3,1", "--fit": "off",
    "--override-tensor": "x=CPU", "--api-prefix": "/p", "--cors-origins": "o", "--host": "::1",
    "--chat-template": "t", "--chat-template-kwargs": '{"a": true}', "--reasoning": "off", "--model-draft": "d.gguf",
    "--reasoning-budget-message": "m", "--spec-draft-ngl": "3",
}  # fmt: skip


def names(row):
    return row.names.split()


def long_name(row):
    return next(name for name in names(row) if name.startswith("--"))


def values_of(row):
    return row.read.metavar.strip("{}").split(",")


def params(*argv):
    return apply(parse(["-m", "m.gguf", *argv]), xllamacpp)


def get(of, target):
    value = operator.attrgetter(target)(of)
    return sorted(value) if isinstance(value, set) else value


def test_no_flag_is_listed_twice():
    """Every spelling belongs to one row, so none shadows another."""
    spellings = list(itertools.chain.from_iterable(map(names, ROWS)))
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("row", SWITCHES, ids=long_name)
def test_a_switch_sets_its_attribute(row):
    """Each switch sets an attribute of the engine, under each of its names."""
    for name in names(row):
        made = params(name)
        for target, value in row.sets.items():
            wanted = getattr(getattr(xllamacpp, value.kind), value.name) if isinstance(value, Member) else value
            assert get(made, target) == wanted


@pytest.mark.parametrize("row", VALUES, ids=long_name)
def test_a_value_reaches_the_engine(row, tmp_path):
    """Each flag with a value changes an attribute of the engine, the same one under each of its names."""
    (tmp_path / "file").write_text("# comment\nkey\n")
    if isinstance(row.read, Choice):
        text = values_of(row)[0 if row.names.startswith("-fa") else -1]  # one that is not the default
    elif row.metavar == "FILE" and "model" not in row.names:
        text = str(tmp_path / "file")
    else:
        text = EXAMPLES.get(long_name(row), "7")
    for target in row.targets.split():
        before = get(xllamacpp.CommonParams(), target)
        after = {repr(get(params(name, text), target)) for name in names(row)}
        assert len(after) == 1
        assert after != {repr(before)}


@pytest.mark.parametrize("row", [row for row in VALUES if isinstance(row.read, Choice)], ids=long_name)
def test_every_listed_value_is_one_of_the_engines(row):
    """The engine has each value that --help offers."""
    for value in values_of(row):
        params(names(row)[0], value)
    with pytest.raises(argparse.ArgumentTypeError, match="nonsense"):
        row.read("nonsense")


@pytest.mark.parametrize(
    ("argv", "target", "value"),
    [
        ((), "port", DEFAULT_PORT),
        ((), "hostnames", ["127.0.0.1"]),
        (("--port", "0"), "port", 0),
        (("--host", "127.0.0.1,::1"), "hostnames", ["127.0.0.1", "::1"]),
        (("-ngl", "auto"), "n_gpu_layers", -1),
        (("-ngl", "all"), "n_gpu_layers", -2),
        (("-ngl", "0"), "n_gpu_layers", 0),
        (("--rope-scale", "4"), "rope_freq_scale", 0.25),
        (("-t", "3"), "cpuparams_batch.n_threads", 3),
        (("-tb", "2", "-t", "3"), "cpuparams_batch.n_threads", 2),
        (("--temp", "0.5"), "sampling.user_sampling_config", 64),
        (("--seed", "-1"), "sampling.seed", 2**32 - 1),
        (("--chat-template-kwargs", '{"a": true}'), "default_template_kwargs", {"a": "true"}),
        (("-ncmoe", "1", "-ot", "x=CPU"), "tensor_buft_overrides",
         r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU,x=CPU"),
        (("--jinja", "--no-jinja"), "use_jinja", False),
        (("-c", "1", "--ctx-size=2"), "n_ctx", 2),
    ],
)  # fmt: skip
def test_values_are_translated_as_by_llama_server(argv, target, value):
    """Of two values the later one wins."""
    assert get(params(*argv), target) == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--mlock",), "--mlock is not honoured"),
        (("--override-kv", "a=int:1"), "--override-kv is not honoured"),
        (("--hf-repo=a/b",), "--hf-repo is not honoured"),
        (("--ctx", "5"), "--ctx is not honoured"),
        (("stray",), "stray is not honoured"),
        (("-c", "many"), "-c/--ctx-size: invalid int value: 'many'"),
        (("-fa", "maybe"), "'maybe' is not one of on, off, auto"),
        (("--fit", "maybe"), "'maybe' is not one of on, off"),
        (("--rope-scale", "0"), "'0' is not above zero"),
        (("--api-key-file", "/nowhere"), "cannot read /nowhere"),
        (("--api-key-file", "/dev/null"), "contains no key"),
        (("--chat-template-kwargs", "[]"), "is not a JSON object"),
        (("--chat-template-kwargs", "{'a': 1}"), "is not JSON: Expecting property name"),
    ],
)
def test_unsupported_flags_are_refused_by_name(argv, message, capsys):
    """A flag outside the table, a shortened one and a bad value each end the program with exit code 2 and one line."""
    with pytest.raises(SystemExit) as caught:
        parse(["-m", "m.gguf", *argv])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_model_is_required(capsys):
    with pytest.raises(SystemExit):
        parse([])
    assert "--model" in capsys.readouterr().err


def test_a_value_that_the_engine_rejects_is_named():
    """The engine's error is reported with the attribute."""
    with pytest.raises(ValueError, match="rejects 'x=NOWHERE' for tensor_buft_overrides"):
        params("-ot", "x=NOWHERE")
    with pytest.raises(ValueError, match="n_ctx"):
        params("-c", str(2**40))
