"""Policies of roles with spaces of their own: each has the observations, actions and masks of its role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from tests.support import signal_env  # noqa: F401  # registers the environment

from gpuvec.cli import main
from gpuvec.errors import StateError
from gpuvec.learners import a2c, ddpg, ppo
from gpuvec.learners.environments import policy_roles
from gpuvec.learners.evaluation.evaluate import load_policy, run_episodes
from gpuvec.learners.evaluation.players import at_random, by_role, policies_by_role, policy
from gpuvec.learners.opponents import Frozen, Scripted
from gpuvec.learners.training import make_learner, train

E, T = 4, 8
SETTINGS: dict[str, Any] = {
    "env": "tests/Signal-v0", "num_envs": E, "num_steps": T, "hidden": (8,), "seed": 3, "device": "cpu",
}  # fmt: skip
SHORT: dict[str, Any] = {"max_episode_steps": 5}
SIZES = {"lamp": (1, 6, 4), "watcher": (3, 5, 7), "runner": (2, 2, None)}  # agents, features, mask


def make_policies(**settings: Any) -> dict[str, Any]:
    """The lamp and the runners learn by PPO, the watchers by A2C."""
    kinds = {"lamp": ppo.PPOArgs, "watcher": a2c.A2CArgs, "runner": ppo.PPOArgs}
    return {role: kind(**{**SETTINGS, **settings}) for role, kind in kinds.items()}


def resolved(policies: dict[str, Any]) -> dict[str, Any]:
    return {role: args.resolved("cpu") if hasattr(args, "resolved") else args for role, args in policies.items()}


@pytest.fixture(scope="module")
def envs() -> Any:
    return gym.make_vec("tests/Signal-v0", E, device="cpu", output="torch", autoreset_mode="SameStep", buffers=1, **SHORT)


def test_each_policy_has_the_rows_of_its_role(envs: Any) -> None:
    """The stored observations, masks and rewards are those of the same actions in another run of the environment."""
    learner = make_learner(resolved(make_policies()), envs)
    learner.collect()
    other = gym.make_vec("tests/Signal-v0", E, device="cpu", output="torch", autoreset_mode="SameStep", **SHORT)
    obs, infos = other.reset(seed=3)
    num_ended = 0
    for t in range(T):
        actions = {}
        for role, (agents, features, mask_size) in SIZES.items():
            policy, rows = learner.policies[role], learner.policies[role].rows
            assert rows.obs.shape == (T + 1, E * agents, features)
            assert torch.equal(rows.obs[t], obs[role].flatten(0, 1))
            if mask_size is None:
                assert rows.action_mask is None
            else:
                mask, action = infos["action_mask"][role].flatten(0, 1), policy.buffer.action[t]
                assert torch.equal(rows.action_mask[t], mask)
                first = action if role == "lamp" else action[:, 0]
                assert mask.gather(1, first.unsqueeze(1)).all()
            actions[role] = policy.network.control(policy.buffer.action[t]).view(E, agents, -1).squeeze(-1)
        obs, reward, _, _, infos = other.step(actions)
        acted = infos["agent_mask"]
        for role, where in envs.roles.items():
            rows = learner.policies[role].rows
            assert torch.equal(rows.mask[t], acted[:, where].flatten())
            assert torch.equal(rows.reward[t][rows.mask[t]], reward[:, where].flatten()[rows.mask[t]])
            final = infos["_final_obs"].repeat_interleave(SIZES[role][0])
            assert torch.equal(rows.final_obs[t][final], infos["final_obs"][role].flatten(0, 1)[final])
        num_ended += int(infos["_final_obs"].sum())
    assert num_ended > 0


def test_a_training_continues_from_its_checkpoint_bit_for_bit() -> None:
    whole = train(make_policies(total_steps=4 * E * T))
    assert {"lamp/return", "watcher/entropy", "runner/clip_fraction"} <= whole.history[-1].keys()
    half = train(make_policies(total_steps=2 * E * T))
    rest = train(make_policies(total_steps=4 * E * T, anneal_lr=False), checkpoint=half.checkpoint)
    assert rest.checkpoint["iteration"] == whole.checkpoint["iteration"] == 4
    again = train(make_policies(total_steps=4 * E * T, anneal_lr=False), checkpoint=half.checkpoint)
    for role in SIZES:
        for x, y in zip(rest.networks[role].parameters(), again.networks[role].parameters(), strict=True):
            assert torch.equal(x, y)
    results = run_episodes("tests/Signal-v0", policies_by_role(whole.networks), episodes=5, device="cpu")
    assert results.returns.shape == (5, 6)
    _, network = load_policy(whole.checkpoint, "cpu", role="watcher")
    mixed = by_role({"lamp": at_random(1), "watcher": policy(network), "runner": policy(whole.networks["runner"])})
    assert run_episodes("tests/Signal-v0", mixed, episodes=5, device="cpu").returns.isfinite().all()
    frozen = {"watcher": Frozen(whole.checkpoint, "watcher"), "lamp": Scripted(lambda obs, mask: mask.byte().argmax(1) + 1)}
    trained = train({**make_policies(total_steps=E * T), **frozen})
    assert set(trained.checkpoint["args"]) == {"runner"}
    with pytest.raises(StateError, match="the frozen policy, of tests/Signal-v0, is for Box"):
        train({**make_policies(total_steps=E * T), "lamp": Frozen(whole.checkpoint, "watcher")})


def test_random_players_take_allowed_actions() -> None:
    env = gym.make_vec("tests/Signal-v0", 8, device="cpu", output="torch", validate=True)
    obs, infos = env.reset(seed=0)
    act, drawn = at_random(0)(env), []
    for _ in range(6):
        actions, masks = act(obs, infos["action_mask"]), infos["action_mask"]
        assert masks["lamp"].gather(2, (actions["lamp"] - 1).unsqueeze(2)).all()
        drawn.append(actions["runner"])
        obs, _, _, _, infos = env.step(actions)
    runners = torch.stack(drawn)  # 192 numbers of a Box from -1 to 1
    assert runners.min() < -0.9
    assert runners.max() > 0.9
    assert runners.abs().max() <= 1.0
    assert runners.unique().numel() > 180
    env.check()


def test_policies_that_do_not_fit_raise(envs: Any) -> None:
    with pytest.raises(ValueError, match=r"one policy cannot act for all: give one for each, \{'lamp': ..., 'watcher': ..., '"):
        make_learner(ppo.PPOArgs(**SETTINGS).resolved("cpu"), envs)
    with pytest.raises(ValueError, match="there are policies for lamp; the environment has lamp, watcher, runner: give"):
        make_learner(resolved({"lamp": ppo.PPOArgs(**SETTINGS)}), envs)
    off_policy = ddpg.DDPGArgs(**SETTINGS, num_iterations=128)
    with pytest.raises(ValueError, match=r"the action space is Discrete\(4, start=1\)"):
        make_learner(resolved({**make_policies(), "lamp": off_policy}), envs)


def test_the_command_line_trains_a_policy_for_each_role(tmp_path: Path, capsys: Any) -> None:
    assert policy_roles("tests/Signal-v0", {}) == tuple(SIZES)
    assert policy_roles("gpuvec/CartPole-v1", {}) == ("all",)
    # Tuned settings of PPO give each role a policy, although their spaces are equal.
    assert policy_roles("gpuvec/Predators-v0", {}) == ("wolves", "sheep")
    assert policy_roles("gpuvec/Predators-v0", {}, "a2c") == ("all",)
    options = ["--num-envs", "4", "--num-steps", "8", "--total-steps", "64", "--device", "cpu", "--episodes", "3"]
    env = "tests.support.signal_env:tests/Signal-v0"
    assert main(["train", "--env", env, *options, "--runs", str(tmp_path)]) == 0
    (run,) = tmp_path.iterdir()
    assert main(["eval", str(run), "--episodes", "3", "--device", "cpu", "--trust"]) == 0
    evaluation = capsys.readouterr().out
    for role, (agents, _, _) in SIZES.items():
        lines = [line for line in evaluation.splitlines() if line.startswith(f"{role} ")]
        assert len(lines) == 2, role
        assert all(f"per agent ({agents} in each episode" in line for line in lines)
