"""Findings about the machine, with their fixes."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from base.http.certificates import make_pair
from cli.commands.doctor.places import check_finding, installation
from llmkube.cli.commands.doctor.machine import (
    assess_certificates,
    assess_devices,
    assess_disk,
    assess_linux_power,
    assess_memory,
    assess_proxies,
    assess_system,
    check_egress,
)
from llmkube.runtimes.devices import NO_DEVICES, Device, Devices
from llmkube.supervisor.memory.budget import host_budget

GIB = 1 << 30
L4 = Device("cuda", "NVIDIA L4", total_bytes=24 * GIB, evidence="/proc/driver/nvidia")
MAC = partial(assess_system, "macOS", "26.1", "Apple silicon", mac=True, apple_silicon=True)
INTEL = partial(assess_system, "macOS", "26.1", "Intel", mac=True)
OLD = partial(assess_system, "macOS", machine="Apple silicon", mac=True, apple_silicon=True)
MEMORY = partial(
    assess_memory, budget=host_budget(64 * GIB), available_bytes=40 * GIB, critical_share=0.05, shortage="", promised={}
)


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        (MAC(), "pass", "macOS 26.1"),
        (MAC(translated=True), "fail", "is for Intel"),
        (INTEL(), "warn", "Intel processor"),
        (INTEL(wants_metal=True), "fail", "`llmkube agent install --accelerator cpu`"),
        (OLD(release="13.2.1"), "fail", "macOS 13.3"),
        (OLD(release="13.3"), "pass", "13.3"),
        (assess_system("Linux", "6.1", "x86_64"), "pass", "Linux 6.1"),
        (MEMORY(), "pass", "48.0 GiB (75 % of 64.0 GiB by default)"),
        (MEMORY(budget=host_budget(64 * GIB, 0.95)), "pass", "95 % of"),
        (MEMORY(budget=host_budget(64 * GIB, 0.96)), "fail", "memory_fraction in config.toml"),
        (MEMORY(promised={"default/m": 64 * GIB}), "pass", ""),
        (MEMORY(promised={"default/m": 65 * GIB}), "fail", "spec.hardware.memoryBudget of default/m"),
        (MEMORY(shortage="swapping"), "warn", "swapping"),
        (assess_disk(Path("/m"), 10 * GIB), "pass", "10.0 GiB free in /m"),
        (assess_disk(Path("/m"), 10 * GIB - 1), "warn", "`llmkube cache prune`"),
        (assess_disk(Path("/m"), GIB), "warn", ""),
        (assess_disk(Path("/m"), GIB - 1), "fail", "--model-store"),
        (assess_devices(NO_DEVICES, ()), "pass", "no GPU: models are computed on the CPU"),
        (assess_devices(Devices((L4,), (attrs.evolve(L4, id="CUDA0"),)), ()), "pass", "NVIDIA L4 (CUDA0, 24.0 GiB, "),
        (assess_devices(Devices((L4,), (attrs.evolve(L4, id="CUDA0"),)), ()), "pass", "without nvidia-ml-py"),
        (assess_devices(Devices((L4,), (), "/e"), ()), "warn", "/e lists no CUDA device"),
        (assess_devices(Devices((L4,), (), "/e"), ("nvidia_icd",)), "warn", "Vulkan drivers: nvidia_icd"),
        (assess_devices(Devices((L4,), ()), ()), "warn", "pip install --force-reinstall xllamacpp --index-url"),
        (assess_linux_power(None), "pass", "no battery"),
        (assess_linux_power(True), "pass", "on mains"),
        (assess_linux_power(False), "warn", "connect it to mains"),
    ],
)
def test_each_check_is_one_finding_with_its_fix(found, verdict, words):
    check_finding(found, verdict, words)


@pytest.mark.parametrize(
    ("rules", "environ", "verdict", "words"),
    [
        ((), {}, "pass", "none; downloads and providers are reached directly"),
        (
            ("a.example=direct", "*=http://me:secret@rest:1"),
            {"https_proxy": "me:secret@proxy:3128", "NO_PROXY": ".corp", "HTTPS_PROXY": "http://unused"},
            "pass",
            "--proxy a.example=direct, --proxy *=http://rest:1, https_proxy=proxy:3128, NO_PROXY=.corp",
        ),
        ((), {"ALL_PROXY": "socks5://me:secret@s:1"}, "fail", "ALL_PROXY: socks5://s:1 is not a proxy"),
        ((), {"HTTP_PROXY": "http://p", "no_proxy": "10.0.0.0/33"}, "fail", "no_proxy: '10.0.0.0/33' is not a name"),
        (("x",), {}, "fail", "--proxy: x is not TARGET=URL"),
    ],
)
def test_proxies_are_shown_without_passwords(rules, environ, verdict, words):
    found = assess_proxies(rules, environ)
    check_finding(found, verdict, words)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("variable", "setting", "verdict", "words"),
    [
        ("", "", "pass", "the system's (system: /"),
        ("ca.pem", "ca.pem", "pass", "the system's, SSL_CERT_FILE {0}/ca.pem, --ca-file {0}/ca.pem (system: /"),
        ("none.pem", "", "fail", "SSL_CERT_FILE: cannot read certificates from {0}/none.pem: No such file"),
        ("", "text.pem", "fail", "--ca-file: cannot read certificates from {0}/text.pem: it has no certificates"),
    ],
)
def test_certificates_that_add_to_the_system_s(tmp_path, variable, setting, verdict, words):
    make_pair(tmp_path / "ca.pem", "ca")
    (tmp_path / "text.pem").write_text("nothing")
    environ = {"SSL_CERT_FILE": str(tmp_path / variable)} if variable else {}
    found = assess_certificates(tmp_path / setting if setting else None, environ)
    check_finding(found, verdict, words.format(tmp_path))
    assert found.name == "certificates"


def test_the_proxies_are_those_of_the_running_program(tmp_path):
    """Its environment may be that of a service manager, not of this terminal."""
    environ = {"PATH": os.environ["PATH"], "HTTPS_PROXY": "http://me:secret@proxy:3128"}
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        found = trio.run(check_egress, installation(tmp_path, pid=running.pid))
        running.stdin.close()
    assert found[0].found == "HTTPS_PROXY=http://proxy:3128"
