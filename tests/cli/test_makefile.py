"""`make` on a machine that lacks what it needs."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_python_that_is_too_old_is_reported_first(tmp_path):
    """With Apple's Python 3.9 alone, make prints what it needs and creates no environment."""
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    venv = tmp_path / "venv"
    command = ["make", "--directory", ROOT, f"PYTHON={old}", f"VENV={venv}", "demo"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "is not Python 3.11 or later" in done.stderr
    assert not venv.exists()


def test_the_demo_installs_the_packages_for_serving_and_reports_it_first(tmp_path):
    """No linter or test tool is installed; the first line names what is, and the installer prints only errors."""
    stamp = tmp_path / "venv" / ".serving"
    command = ["make", "--dry-run", "--directory", ROOT, f"VENV={stamp.parent}", stamp]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "--requirement requirements/llama.txt --requirement requirements/build.txt" in done.stdout
    assert "requirements/dev.txt" not in done.stdout
    assert done.stdout.index("Installing the packages for serving") < done.stdout.index("--require-hashes")
    installs = [each for each in re.split(r"&&|;|\n", done.stdout) if "pip install" in each]
    assert installs
    assert all("--quiet" in each for each in installs)
    command = ["make", "--dry-run", "--directory", ROOT, f"VENV={stamp.parent}", "demo"]
    assert "Installing" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_mac_install_is_pinned_by_hash(tmp_path):
    """`make install-metal-agent` installs two lock files, each entry with a digest, and this tree alone."""
    command = ["make", "--dry-run", "--directory", ROOT, f"VENV={tmp_path / 'venv'}", f"PREFIX={tmp_path}"]
    done = subprocess.run([*command, "install-metal-agent"], check=True, capture_output=True, text=True)
    text = done.stdout.replace("\\\n", " ")
    installs = [each for line in text.splitlines() for each in re.split(r"&&|;", line) if "pip install" in each]
    locks = "--requirement requirements/llama.txt --requirement requirements/build.txt"
    pinned = [each for each in installs if f"--require-hashes --only-binary :all: {locks}" in each]
    tree = [each for each in installs if each.strip().endswith("--no-deps --no-build-isolation --editable .")]
    assert (len(pinned), len(tree), len(installs)) == (2, 2, 4), installs  # by uv, and by pip where there is none
    for name in ("llama", "build"):
        listed = (ROOT / "requirements" / f"{name}.txt").read_text().replace("\\\n", " ")
        for entry in listed.splitlines():
            if entry.strip() and not entry.lstrip().startswith("#"):
                assert re.match(r"[\w.\[\],-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry), entry
    assert not re.search(r"\b(curl|wget|brew|npm)\b", text)
