"""Homebrew's formula: its version, address and digest are those of the release, and Ruby reads it."""

import hashlib
import os
import re
import shutil
import subprocess
import tomllib

import pytest

from debian_packages import unpack
from supply.dist import ROOT, TEMPLATE, formula

TEXT = (ROOT / TEMPLATE).read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SDIST = (f"llmkube-{PROJECT['version']}.tar.gz", b"the sources")
BASE = "https://example.org/llmkube/releases/download/v0.1.0/"


def made(**changes):
    return formula(**{"template": TEXT, "project": PROJECT, "sdist": SDIST, "base_url": BASE, **changes})


def field(text, name):
    (found,) = re.findall(rf'^  {name} "(.*)"$', text, re.MULTILINE)
    return found


def test_its_fields_are_those_of_the_release():
    """Version and licence of pyproject.toml, and the digest of the very sources that it names."""
    text = made()
    assert field(text, "url") == f"{BASE}{SDIST[0]}"
    assert field(text, "sha256") == hashlib.sha256(b"the sources").hexdigest()
    assert field(text, "version") == PROJECT["version"]
    assert field(text, "license") == PROJECT["license"]
    assert "@HOMEPAGE@" not in text
    assert not re.search(r"@[A-Z]+@", text)
    assert text.startswith("class Llmkube < Formula\n")


def test_other_sources_have_another_digest():
    """A formula of an earlier build does not pass for this one's."""
    assert field(made(sdist=(SDIST[0], b"others")), "sha256") != field(made(), "sha256")


@pytest.mark.parametrize("url", ["", "http://example.org/", "https://", "file:///dist", 'https://a/"; system "x'])
def test_an_address_that_is_none_is_refused(url):
    """Homebrew fetches by https; a quote in it would be Ruby's."""
    with pytest.raises(ValueError, match="give the https:// address"):
        made(base_url=url)


def test_a_slot_that_nothing_fills_is_refused():
    """It would reach a user's brew unfilled."""
    with pytest.raises(ValueError, match="@NEW@, which nothing fills"):
        made(template='class A\n  x "@NEW@"\nend\n')


def test_it_installs_what_the_lock_pins_and_links_programs_that_are_there():
    """The files that it names are in the sources, and the programs are those of pyproject.toml."""
    for name in re.findall(r"--requirement=(\S+?)\"", TEXT):
        assert (ROOT / name).is_file()
    linked = set(re.findall(r'libexec/"bin/(llmkube[\w-]*)"', TEXT))
    assert linked <= set(PROJECT["scripts"])
    assert "--require-hashes" in TEXT


def ruby(folder):
    """A Ruby, and the environment in which it runs: that of PATH, else Debian's, unpacked."""
    if found := shutil.which("ruby"):
        return found, dict(os.environ)
    for package in ("ruby3.1", "libruby3.1"):
        unpack(package, folder)
    libraries = sorted({str(path.parent) for path in folder.rglob("libruby*.so*")})
    return str(folder / "usr" / "bin" / "ruby3.1"), {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


@pytest.mark.ci
def test_ruby_reads_it(tmp_path):
    """`ruby -c` checks the syntax without Homebrew, and reports a damaged formula."""
    program, environ = ruby(tmp_path)
    for text, code in ((made(), 0), (made().replace("\nend\n", "\n"), 1)):
        file = tmp_path / "llmkube.rb"
        file.write_text(text)
        command = [program, "--disable-gems", "-c", file]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == code, done.stderr
