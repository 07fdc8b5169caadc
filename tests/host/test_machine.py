"""`auto` falls back and says so; what was asked for by name and is not there is one line (D10)."""

from __future__ import annotations

import pytest

from artifact.errors import UserError
from artifact.host import machine


@pytest.fixture
def offers(monkeypatch):
    """Pretend what the machine offers: reasons why docker or cuda are missing, None if there."""

    def pretend(*, docker: str | None, cuda: str | None) -> None:
        monkeypatch.setattr(machine, "why_no_docker", lambda: docker)
        monkeypatch.setattr(machine, "why_no_cuda", lambda engine: cuda)

    return pretend


def test_everything_there_means_docker_and_the_papers_grid(offers):
    offers(docker=None, cuda=None)
    choice = machine.choose("auto", "auto", "auto", None)
    assert (choice.engine, choice.profile, choice.device) == ("docker", "paper", "cuda")


def test_no_gpu_falls_back_to_the_cpu_profile_and_says_why(offers):
    offers(docker=None, cuda="no NVIDIA driver")
    choice = machine.choose("auto", "auto", "auto", None)
    assert (choice.engine, choice.profile, choice.device) == ("docker", "cpu", "cpu")
    assert "no NVIDIA driver: measuring on the CPU" in choice.reasons


def test_no_docker_falls_back_to_processes_and_names_their_needs(offers):
    offers(docker="no Docker engine answers", cuda="no GPU")
    choice = machine.choose("auto", "smoke", "auto", "cpu")
    assert (choice.engine, choice.profile) == ("process", "smoke")
    assert "g++" in choice.reasons[0]
    assert "\n" not in choice.reasons[0]


def test_docker_asked_for_and_absent_is_an_error(offers):
    offers(docker="no Docker engine answers", cuda=None)
    with pytest.raises(UserError, match="ENGINE=process"):
        machine.choose("docker", "cpu", "auto", "cpu")


def test_cuda_asked_for_and_absent_names_the_container_toolkit(offers):
    offers(docker=None, cuda="Docker has no NVIDIA Container Toolkit")
    with pytest.raises(UserError, match="Container Toolkit"):
        machine.choose("docker", "auto", "cuda", None)
    with pytest.raises(UserError, match="Container Toolkit"):
        machine.choose("docker", "paper", "auto", "cuda")


def test_a_cpu_profile_never_asks_for_a_gpu(offers, monkeypatch):
    offers(docker=None, cuda=None)
    monkeypatch.setattr(machine, "why_no_cuda", lambda engine: pytest.fail("asked for a GPU"))
    assert machine.choose("docker", "smoke", "auto", "cpu").device == "cpu"
    assert machine.choose("docker", "auto", "cpu", None).profile == "cpu"


def test_an_unknown_device_is_refused_by_name(offers):
    offers(docker=None, cuda=None)
    with pytest.raises(UserError, match="unknown device 'gpu'"):
        machine.choose("docker", "auto", "gpu", None)


def test_profile_and_device_must_agree(offers):
    offers(docker=None, cuda=None)
    with pytest.raises(UserError, match="is for cpu, not for cuda"):
        machine.choose("docker", "smoke", "cuda", "cpu")


@pytest.mark.parametrize(
    ("information", "expected"),
    [
        ({"Runtimes": {"runc": {}}}, False),
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, True),
        ({"DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}, True),
        ({}, False),
    ],
)
def test_the_container_toolkit_is_seen_in_docker_info(information, expected):
    assert machine.has_container_toolkit(information) is expected
