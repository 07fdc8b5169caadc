"""The shipped study is consistent, and a broken one is one line that names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from artifact import study
from artifact.errors import UserError


def test_every_configuration_names_a_stack_that_exists(the_study):
    from artifact.trial.stacks import adapter

    for configuration in the_study.configurations.values():
        assert adapter(configuration.stack).native.phases


def test_eager_runs_in_the_inductor_image():
    assert study.image_of("eager") == "inductor"
    assert study.image_of("xla") == "xla"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 7", "schema"),
        ("processes = 5", "processes = 0", "protocol.processes"),
        ("processes = 5", "proceses = 5", "proceses"),
        ('"1x3x224x224", "16x3', '"1*3*224", "16x3', "not like 1x3x224x224"),
        ('model = "gpt2"', 'model = "gpt3"', "unknown model 'gpt3'"),
        ('stack = "eager"', "stack = 3", "stack"),
        ("[protocol]", "[protocol", "line"),
    ],
)
def test_a_broken_study_is_one_line(tmp_path: Path, old, new, message):
    text = study.DEFAULT_PATH.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "study.toml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        study.load(path)
    assert "\n" not in str(caught.value)
    assert "study.toml" in str(caught.value)


def test_a_missing_study_is_one_line(tmp_path: Path):
    with pytest.raises(UserError, match="cannot read the study file"):
        study.load(tmp_path / "absent.toml")


def test_configuration_must_fit_the_model(tmp_path: Path):
    text = study.DEFAULT_PATH.read_text(encoding="utf-8")
    path = tmp_path / "study.toml"
    broken = text.replace('"inductor", "xla", "tvm"] },\n]', '"inductor-control"] },\n]')
    assert broken != text
    path.write_text(broken, encoding="utf-8")
    with pytest.raises(UserError, match="does not apply to 'gpt2'"):
        study.load(path)


@pytest.mark.parametrize("text", ["1x3x", "x", "1,3", "-1x3", "1x0", "7"])
def test_input_shapes(text):
    with pytest.raises(UserError, match="not a shape"):
        study.parse_input(text)
