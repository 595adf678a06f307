"""The estimate of projectors, compared with what the real engine reserves for generated ones."""

import re
import subprocess
import sys

import attrs
import pytest

from llmkube.weights.estimate.demand import Demand, Location
from llmkube.weights.estimate.sizing import estimate
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.formats.projector import read_projector
from tiny_projectors import KINDS, ColourModel, Projector

ENGINE = (sys.executable, "-m", "llmkube.programs.bundled_engine.llama_server")
WARMUP_TOKENS = {"pixtral": 256, "qwen2vl_merger": 46 * 46}
"""Size of the picture for which the engine reserves its buffer, for kinds whose pictures have different sizes."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "colour.gguf"
    ColourModel(path)
    return path


def log_of(*args):
    """Return what an engine writes until it serves."""
    command = [*ENGINE, "--ctx-size", "512", "--port", "0", "--verbosity", "4", "--fit", "off", *map(str, args)]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as engine:
        for line in engine.stdout:
            lines.append(line)
            if "listening on" in line:  # written by the same thread as the lines before it
                break
        engine.kill()
    return "".join(lines)


@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_is_what_the_engine_reserves(model, tmp_path, kind, flash):
    """Weights and buffer of each kind, within one percent."""
    path = tmp_path / "mmproj.gguf"
    Projector(path, kind, inner=256, layers=3, size=224)
    log = log_of("--model", model, "--mmproj", path, "--flash-attn", flash)
    sizes = re.findall(r"model size: +([\d.]+) MiB|compute_meta: .*compute buffer size = +([\d.]+) MiB", log)
    wanted = sum(float(weights or buffer) for weights, buffer in sizes) * (1 << 20)
    demand = Demand(
        context=512,
        flash_attention=flash,
        projector_path=str(path),
        projector=read_projector(path).shape,
        image_tokens=WARMUP_TOKENS.get(kind, 0),
    )
    found = estimate(read_header(model).shape, demand)
    (part,) = (each for each in found.components if each.name == "mmproj")
    assert len(sizes) == 2, log
    assert (part.size_bytes, part.place) == (pytest.approx(wanted, rel=0.01), Location.HOST)


def test_an_unknown_kind_is_counted_high(model, tmp_path):
    """The note names the kind."""
    path = tmp_path / "mmproj.gguf"
    Projector(path, "mlp")
    shape = read_projector(path).shape
    demand = Demand(projector_path=str(path), projector=attrs.evolve(shape, architecture="newer"))
    found = estimate(read_header(model).shape, demand)
    assert not found.certain
    assert any("the projector's kind newer is unknown" in note for note in found.notes)
