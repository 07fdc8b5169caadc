"""The path of make reproduce: what was asked for by name is never replaced (case D10)."""

from __future__ import annotations

import pytest

from artifact.errors import UserError
from artifact.host import machine, reproduce


@pytest.fixture
def gpu_seen_before_the_images_exist(monkeypatch):
    """`docker info` promises a GPU, and no container gets one; nothing is built."""
    built = []
    monkeypatch.setattr(machine, "why_no_docker", lambda: None)
    monkeypatch.setattr(machine, "why_no_cuda", lambda engine: None)
    monkeypatch.setattr(machine, "why_no_gpu_in_containers", lambda: "no GPU in a container")
    monkeypatch.setattr(reproduce, "prepare_engine", lambda choice, *_: built.append(choice.device))
    return built


def test_auto_falls_back_to_the_cpu_and_records_it(gpu_seen_before_the_images_exist, tmp_path):
    wish = reproduce.Wish(results=tmp_path)
    before = reproduce.resolve(wish)
    assert (before.choice.device, before.plan.profile) == ("cuda", "paper")
    said = []
    after = reproduce._with_working_gpu(before, wish, said.append)
    assert (after.choice.device, after.plan.profile, after.plan.device) == ("cpu", "cpu", "cpu")
    assert after.directory == tmp_path / "cpu"
    assert said == ["no GPU in a container: measuring on the CPU"]
    assert said[0] in after.choice.reasons
    assert gpu_seen_before_the_images_exist == ["cpu"]


@pytest.mark.parametrize("asked", [{"device": "cuda"}, {"profile": "paper"}])
def test_a_gpu_asked_for_by_name_is_an_error(gpu_seen_before_the_images_exist, tmp_path, asked):
    wish = reproduce.Wish(results=tmp_path, **asked)
    with pytest.raises(UserError, match="device cuda: no GPU in a container"):
        reproduce._with_working_gpu(reproduce.resolve(wish), wish, print)


def test_a_cpu_run_never_tries_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "why_no_docker", lambda: None)
    monkeypatch.setattr(machine, "why_no_gpu_in_containers", lambda: pytest.fail("tried a GPU"))
    wish = reproduce.Wish(profile="smoke", results=tmp_path)
    prepared = reproduce.resolve(wish)
    assert reproduce._with_working_gpu(prepared, wish, print) is prepared


@pytest.mark.parametrize("name", ["../x", ".hidden", "a/b", "..", "a\nb"])
def test_names_that_are_no_folder_are_refused(monkeypatch, tmp_path, name):
    monkeypatch.setattr(machine, "why_no_docker", lambda: None)
    with pytest.raises(UserError, match="not a folder name"):
        reproduce.resolve(reproduce.Wish(profile="smoke", name=name, results=tmp_path))


def test_one_block_now_and_the_rest_later(tmp_path):
    """A session limited to one block leaves the whole plan on disk; resuming completes it."""
    only = reproduce.blocks_named(["resnet18:1x3x64x64"])
    wish = reproduce.Wish(profile="smoke", engine="fake", results=tmp_path, only=only)
    said = []
    assert reproduce.reproduce(wish, said.append) == 0
    assert "10 of 10 trials done; 10 run now" in said[-1]
    rest = reproduce.Wish(profile="smoke", engine="fake", results=tmp_path, resume=True)
    assert reproduce.reproduce(rest, said.append) == 0
    assert "14 of 14 trials done; 4 run now" in said[-1]


def test_blocks_that_the_profile_lacks_are_one_line(tmp_path):
    with pytest.raises(UserError, match="not model:input"):
        reproduce.blocks_named(["resnet18"])
    only = reproduce.blocks_named(["resnet18:1x3x9x9"])
    wish = reproduce.Wish(profile="smoke", engine="fake", results=tmp_path, only=only)
    with pytest.raises(UserError, match="no block resnet18:1x3x9x9"):
        reproduce.resolve(wish)


def test_the_verdict_is_about_what_was_really_run(monkeypatch, tmp_path):
    """After a fallback the measured folder is another one than the wish resolves to."""
    from artifact.host import judge

    monkeypatch.setattr(machine, "why_no_docker", lambda: None)
    wish = reproduce.Wish(profile="smoke", results=tmp_path)
    asked = reproduce.resolve(wish)
    ran = reproduce.dataclasses.replace(asked, directory=tmp_path / "elsewhere")
    monkeypatch.setattr(reproduce, "_run", lambda prepared, *_: (ran, 0))
    judged = []
    monkeypatch.setattr(judge, "check", lambda **k: judged.append(k["measured_file"]) or 1)
    assert reproduce.reproduce_and_check(wish, print) == 1
    assert judged == [tmp_path / "elsewhere"]
