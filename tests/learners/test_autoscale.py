"""The search for the number of environments and the length of rollouts with the highest steps per second."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gpuvec
from gpuvec.cli import main
from gpuvec.learners import autoscale as search
from gpuvec.learners.autoscale import ROLLOUTS_IN_MEMORY, Trial, fastest, process_bytes, run_trial, trials_of_all
from gpuvec.learners.buffers.memory_check import rollout_bytes
from gpuvec.learners.config.training_config import DDPGArgs, PPOArgs
from gpuvec.learners.ddpg import DDPG
from gpuvec.learners.opponents import Scripted
from gpuvec.learners.ppo import PPO
from gpuvec.learners.shards.process_group import Processes

ARGS = PPOArgs(device="cpu", num_envs=4, num_steps=32)
MEGABYTE = 2**20


class Machine:
    """A machine whose speed and memory follow formulas, in place of trials.

    Args:
        monkeypatch: replaces the trials.
        speed: `speed(num_envs, num_steps)`.
        bytes_per_sample: of the memory, to which a fixed part is added.
        free: the memory that is free.
        bytes_before: what the process has before the first trial.
    """

    def __init__(self, monkeypatch, speed, bytes_per_sample=1000, free=10**12, bytes_before=0) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.speed, self.bytes_per_sample, self.bytes_before = speed, bytes_per_sample, bytes_before
        monkeypatch.setattr(search, "process_bytes", lambda device: bytes_before)
        monkeypatch.setattr(search, "run_trial", self.run_trial)
        monkeypatch.setattr(search, "free_bytes", lambda device: free)

    def num_bytes(self, num_envs, num_steps):
        return self.bytes_before + 100 * MEGABYTE + num_envs * num_steps * self.bytes_per_sample

    def run_trial(self, policies, num_envs, num_steps, seconds, body, shards):
        self.sizes.append((num_envs, num_steps))
        return Trial(num_envs, num_steps, self.speed(num_envs, num_steps), self.num_bytes(num_envs, num_steps))


def test_doubling_ends_after_two_trials_that_gain_nothing(monkeypatch) -> None:
    machine = Machine(monkeypatch, lambda E, T: min(E, 128) * 1000.0)
    scale = gpuvec.autoscale(ARGS, num_steps=32)
    assert machine.sizes == [(E, 32) for E in (16, 32, 64, 128, 256, 512)]
    assert (scale.num_envs, scale.num_steps, scale.steps_per_second) == (128, 32, 128_000.0)


def test_a_slower_trial_in_between_does_not_end_the_search(monkeypatch) -> None:
    machine = Machine(monkeypatch, lambda E, T: (0.9 if E == 64 else 1.0) * min(E, 1024))
    assert gpuvec.autoscale(ARGS, num_steps=32).num_envs == 1024
    assert (64, 32) in machine.sizes


@pytest.mark.parametrize(("best", "tried"), [(128, [64, 128, 256]), (8, [64, 16, 8, 4]), (32, [64, 16])])
def test_the_length_of_rollouts_changes_as_long_as_that_gains(monkeypatch, best, tried) -> None:
    machine = Machine(monkeypatch, lambda E, T: min(E, 64) * (100.0 - 10 * abs(T.bit_length() - best.bit_length())))
    scale = gpuvec.autoscale(ARGS)
    assert (scale.num_envs, scale.num_steps) == (64, best)
    assert [T for _, T in machine.sizes if T != 32] == tried


@pytest.mark.parametrize("free", [10**9, 2 * 10**9, 5 * 10**10])
def test_no_trial_exceeds_the_share_of_the_memory(monkeypatch, free) -> None:
    machine = Machine(monkeypatch, lambda E, T: E * T * 1.0, free=free)
    scale = gpuvec.autoscale(ARGS, memory_share=0.5)
    assert max(machine.num_bytes(*size) for size in machine.sizes) <= 0.5 * free
    last = scale.trials[-1]
    assert last.is_too_large or last.steps_per_second is not None
    assert any(f"{int(0.5 * free):,} are allowed" in trial.reason for trial in scale.trials)
    # At least a quarter of what is allowed is used: the trial with twice as much might not have fitted.
    assert machine.num_bytes(scale.num_envs, scale.num_steps) > 0.125 * free


def test_the_memory_that_the_process_had_before_does_not_grow(monkeypatch) -> None:
    """With PyTorch's libraries in 500 MB, a machine with 900 MB has room for what it would have without them."""
    sizes = []
    for bytes_before in (0, 500 * MEGABYTE):
        machine = Machine(monkeypatch, lambda E, T: E * T * 1.0, free=900 * MEGABYTE, bytes_before=bytes_before)
        scale = gpuvec.autoscale(ARGS, num_steps=32)
        sizes.append(scale.num_envs)
        assert machine.num_bytes(scale.num_envs, 32) - bytes_before <= 0.8 * 900 * MEGABYTE
    assert sizes[0] == sizes[1] > 2000


@pytest.mark.skipif(process_bytes("cpu") == 0, reason="this system does not report the memory of a process")
def test_the_memory_of_this_process_is_measured() -> None:
    before = process_bytes("cpu")
    memory = np.ones(64 * MEGABYTE, np.uint8)
    assert process_bytes("cpu") - before > 0.9 * memory.nbytes
    trial = run_trial({"all": ARGS}, 4, 8, 0.01)
    assert trial.num_bytes >= process_bytes("cpu") - before


def test_a_first_trial_is_smaller_if_its_rollout_would_not_fit(monkeypatch) -> None:
    machine = Machine(monkeypatch, lambda E, T: 1.0, free=60_000)
    assert gpuvec.autoscale(ARGS, memory_share=0.5).num_envs == 4
    with closing(gym.make_vec("gpuvec/CartPole-v1", num_envs=1, device="cpu", output="torch")) as env:
        assert 4 * ROLLOUTS_IN_MEMORY * rollout_bytes(env, 32) <= 30_000 < 8 * ROLLOUTS_IN_MEMORY * rollout_bytes(env, 32)
    assert machine.sizes == [(4, 32)]  # twice as many may take more than twice 100 MB


@pytest.mark.parametrize(("free", "expected"), [(10**12, [15, 30, 60]), (60_000, [3])])
def test_shards_divide_all_sizes(monkeypatch, free, expected) -> None:
    machine = Machine(monkeypatch, lambda E, T: 1.0, free=free)
    gpuvec.autoscale(ARGS, memory_share=0.5, num_steps=32, shards=3)
    assert [E for E, _ in machine.sizes] == expected


def test_a_trial_has_shards_and_names_what_they_do_not_divide() -> None:
    assert run_trial({"all": ARGS}, 4, 8, 0.01, shards=2).steps_per_second > 0.0
    assert "must be a multiple of the number of shards" in run_trial({"all": ARGS}, 4, 8, 0.01, shards=3).reason


class TwoProcesses(Processes):
    """This process, and another one with other trials."""

    def gather_states(self, state):
        return [state, [[8, 32, 500.0, 70, "", False], [16, 32, 100.0, 80, "", False]]]


def test_processes_choose_what_is_fastest_in_sum() -> None:
    own = [Trial(8, 32, 100.0, 90), Trial(16, 32, 400.0, 100), Trial(32, 32, 900.0, 110), Trial(64, 32, reason="large")]
    trials = trials_of_all(own, TwoProcesses(size=2))
    assert trials[:2] == (Trial(16, 32, 600.0, 90), Trial(32, 32, 500.0, 100))
    assert trials[2] == Trial(64, 32, reason="another process has not run it")
    assert fastest(trials) == trials[0]


def test_settings_that_fit_at_no_size_are_named() -> None:
    args = dataclasses.replace(ARGS, num_envs=7, num_steps=5, num_minibatches=7)
    with pytest.raises(ValueError, match=r"no number of environments fits; .*must be a multiple of num_minibatches"):
        gpuvec.autoscale(args, num_steps=5)


@pytest.mark.parametrize("options", [{"memory_share": 0.0}, {"memory_share": 1.5}, {"seconds": 0.0}])
def test_options_out_of_range_are_refused(options) -> None:
    with pytest.raises(ValueError, match="memory_share must be above 0 and at most 1, and seconds above 0"):
        gpuvec.autoscale(ARGS, **options)


@pytest.mark.parametrize("args", [ARGS, DDPGArgs(env="gpuvec/Pendulum-v1", device="cpu", num_envs=4, learning_starts=10**6)])
def test_a_trial_measures_updates_too(monkeypatch, args) -> None:
    updates = []
    policy_class = PPO if args is ARGS else DDPG
    improve = policy_class.improve
    monkeypatch.setattr(policy_class, "improve", lambda *arguments: (updates.append(1), improve(*arguments)))
    trial = run_trial({"all": args}, 8, 16, 0.01)
    assert (trial.num_envs, trial.num_steps, trial.reason) == (8, 16, "")
    assert trial.steps_per_second > 0.0
    assert trial.num_bytes > MEGABYTE
    assert len(updates) >= 6  # two iterations, and then twice as many


def test_policies_of_roles_share_a_trial() -> None:
    args = PPOArgs(env="gpuvec/TagContinuous-v0", params={"num_taggers": 2, "num_runners": 3}, device="cpu", num_envs=4)
    trial = run_trial({"tagger": args, "runner": Scripted(lambda obs: torch.zeros_like(obs[:, :2]).long())}, 4, 8, 0.01)
    assert (trial.reason, trial.steps_per_second > 0.0) == ("", True)


class TestCommandLine:
    OPTIONS = ("--device", "cpu", "--total-steps", "600", "--episodes", "2", "--runs")

    def train(self, tmp_path, *options):
        """Returns the settings of the run."""
        assert main(["train", *self.OPTIONS, str(tmp_path), *options]) == 0
        (run,) = tmp_path.iterdir()
        return json.loads((run / "args.json").read_text())

    def test_auto_trains_with_what_was_chosen(self, monkeypatch, tmp_path, capsys) -> None:
        machine = Machine(monkeypatch, lambda E, T: min(E, 32) * (2.0 if T == 16 else 1.0))
        settings = self.train(tmp_path, "--num-envs", "auto")
        assert (settings["num_envs"], settings["num_steps"]) == (32, 16)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["envs", "rollout", "steps/s", "memory"]
        assert next(line.split() for line in lines if line.endswith("chosen")) == ["32", "16", "64", "100", "MB", "chosen"]
        assert {size[1] for size in machine.sizes} == {32, 64, 16, 8}

    def test_a_given_length_of_rollouts_is_kept(self, monkeypatch, tmp_path) -> None:
        machine = Machine(monkeypatch, lambda E, T: min(E, 32) * 1.0)
        settings = self.train(tmp_path, "--num-envs", "auto", "--num-steps", "32")
        assert (settings["num_envs"], settings["num_steps"]) == (32, 32)
        assert {size[1] for size in machine.sizes} == {32}

    def test_a_population_needs_a_number(self, capsys) -> None:
        assert main(["train", "--device", "cpu", "--num-envs", "auto", "--population", "2"]) == 1
        assert "--num-envs auto is for one policy" in capsys.readouterr().err

    def test_other_words_are_refused(self, capsys) -> None:
        assert main(["train", "--device", "cpu", "--num-envs", "many"]) == 2
        assert "many" in capsys.readouterr().err
