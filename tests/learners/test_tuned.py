"""Settings tuned for an environment."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.config.tuned import TUNED_SETTINGS, tuned

TAG = "gpuvec/TagContinuous-v0"


def test_an_environment_without_tuned_settings_has_the_defaults() -> None:
    assert tuned("mine/Pole-v0", "cpu", seed=3) == PPOArgs(env="mine/Pole-v0", device="cpu", seed=3)


def test_arguments_override_tuned_settings_and_parameters_are_merged() -> None:
    args = tuned(TAG, "cpu", gamma=0.5, params={"num_runners": 3})
    known = TUNED_SETTINGS[TAG, "ppo"]
    assert (args.num_envs, args.num_steps, args.gamma) == (32, known.settings["num_steps"], 0.5)
    assert args.params == {"observe_self": True, "num_runners": 3}
    assert args.resolved("cpu").iterations == known.cpu["num_iterations"]
    assert tuned(TAG, "cpu", num_envs=4).resolved("cpu").iterations == known.cpu["num_iterations"]
    assert tuned(TAG, "cpu", total_steps=1).iterations == 1
    assert tuned(f"gpuvec:{TAG}", "cpu", params={"observe_self": False}).params == {"observe_self": False}


@pytest.mark.first_variants(1)
@pytest.mark.parametrize("options", [["--params", "observe_self", "False", "num_runners", "3"], []])
def test_the_command_line_starts_from_tuned_settings(options, tmp_path, capsys) -> None:
    """Taggers and runners train with one policy, and the results of each role are printed."""
    small = ["--num-envs", "2", "--num-steps", "64", "--total-steps", "128", "--hidden", "8", "--episodes", "3"]
    assert main(["train", "--env", TAG, "--device", "cpu", *small, "--runs", str(tmp_path), *options]) == 0
    printed = capsys.readouterr().out
    assert "tagger     mean return" in printed
    assert f"({3 if options else 10} in each episode" in printed
    (run,) = tmp_path.iterdir()
    settings = (run / "args.json").read_text()
    assert '"gamma": 0.9,' in settings
    assert f'"observe_self": {"false" if options else "true"}' in settings
    assert main(["eval", str(run), "--episodes", "2", "--device", "cpu"]) == 0
    assert "runner     mean return" in capsys.readouterr().out


def test_an_option_without_its_value_is_explained(capsys) -> None:
    assert main(["train", "--env"]) == 2
    assert "--env" in capsys.readouterr().err
