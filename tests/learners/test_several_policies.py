"""Several policies in one game: each observes its own agents, acts for them, and learns from their rewards alone."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.support import street_env  # noqa: F401  # registers the street

from gpuvec.errors import StateError
from gpuvec.learners import a2c, ddpg, ppo
from gpuvec.learners.buffers.env_rollout import AgentSubset, EnvRollout
from gpuvec.learners.evaluation.evaluate import load_policy, run_episodes
from gpuvec.learners.evaluation.players import policies_by_role
from gpuvec.learners.learner import Learner
from gpuvec.learners.networks.mlp import SeparateMLP
from gpuvec.learners.opponents import Frozen, Scripted
from gpuvec.learners.policy_configs import shared_settings
from gpuvec.learners.runs.checkpoint import load
from gpuvec.learners.runs.run_writer import RunWriter
from gpuvec.learners.training import make_learner, train
from gpuvec.vector.wrappers import FlattenAgents

E, T = 4, 16
STREET: dict[str, Any] = {"guards": 2, "walkers": 3, "length": 4, "num_observed": 1, "max_episode_steps": 7}
SHARED_SETTINGS: dict[str, Any] = {
    "env": "tests/Street-v0",
    "params": STREET,
    "num_envs": E,
    "num_steps": T,
    "hidden": (8,),
    "seed": 3,
}
TAG: dict[str, Any] = {
    "env": "gpuvec/TagContinuous-v0", "num_envs": 8, "num_steps": 16, "hidden": (8,),
    "params": {"num_taggers": 2, "num_runners": 3, "grid_length": 4.0, "continuous_actions": True, "max_episode_steps": 12},
}  # fmt: skip


@cache
def street() -> Any:
    return gym.make_vec("tests/Street-v0", E, device="cpu", output="torch", autoreset_mode="SameStep", **STREET)


def make_policies(**settings: Any) -> dict[str, Any]:
    """Guards learn by PPO, walkers by A2C."""
    return {
        "guard": ppo.PPOArgs(**{**SHARED_SETTINGS, "device": "cpu", **settings}).resolved("cpu"),
        "walker": a2c.A2CArgs(**{**SHARED_SETTINGS, "device": "cpu", "learning_rate": 1e-3, **settings}).resolved("cpu"),
    }


def indices(kind: str) -> Any:
    """Returns the indices of three of five agents in each of four environments, or None for all of them."""
    fixed = {"all": None, "adjacent": slice(1, 4), "scattered": torch.tensor([0, 3, 4])}
    return fixed.get(kind, torch.tensor([[0, 1, 2], [2, 3, 4], [0, 2, 4], [4, 1, 3]]))


@pytest.mark.parametrize("kind", ["all", "adjacent", "scattered", "different in each env"])
def test_an_agent_subset_selects_and_scatters_its_rows(kind: str) -> None:
    where, x = indices(kind), torch.randn(6, E, 5, 2)
    part = AgentSubset(where, 5)
    choice = np.arange(5)[where] if isinstance(where, slice) else np.arange(5) if where is None else where.numpy()
    agent_indices = np.broadcast_to(choice, (E, choice.shape[-1]))
    expected = np.stack([x[:, e, i].numpy() for e in range(E) for i in agent_indices[e]], 1)
    np.testing.assert_array_equal(part.select(x), expected)
    np.testing.assert_array_equal(part.select(x[2], 0), expected[2])
    assert (part.per_env, part.is_all) == (agent_indices.shape[1], kind == "all")
    into = torch.zeros(E, 5, 2)
    part.scatter(into, part.select(x[2], 0))
    for e in range(E):
        for i in range(5):
            assert torch.equal(into[e, i], x[2, e, i] if i in agent_indices[e] else torch.zeros(2))


def test_rows_equal_those_of_flatten_agents() -> None:
    """The rows of each role, and of all agents together, equal what FlattenAgents returns for the same steps."""
    rollout = EnvRollout(street(), T, "cpu")
    parts = {role: AgentSubset(where, 5) for role, where in street().roles.items()}
    every, rows = rollout.rows(AgentSubset(None, 5)), {role: rollout.rows(part) for role, part in parts.items()}
    actions = torch.randint(3, (T, E, 5), generator=torch.Generator().manual_seed(0))
    rollout.reset(5)
    rollout.begin_rollout()
    for t in range(T):
        rollout.update_views(t)
        rollout.step(t, actions[t])
    rollout.update_rows()
    flat = FlattenAgents(street())
    obs, _ = flat.reset(seed=5)
    for t in range(T):
        assert torch.equal(every.obs[t], obs)
        obs, reward, terminated, truncated, info = flat.step(actions[t].flatten())
        known = {"reward": reward, "terminated": terminated, "mask": info["agent_mask"], "ended": info["_final_obs"]}
        for name, x in known.items():
            assert torch.equal(getattr(every, name)[t], x), name
            for role, part in parts.items():
                assert torch.equal(getattr(rows[role], name)[t], part.select(x.view(E, 5), 0)), (role, name)
        assert torch.equal(every.final_obs[t][info["_final_obs"]], info["final_obs"][info["_final_obs"]])
        done = (terminated | truncated | info["_final_obs"]) & info["agent_mask"]
        assert torch.equal(every.done[t], done)
    assert torch.equal(every.obs[T], obs)
    for role, part in parts.items():
        assert torch.equal(rows[role].obs, part.select(every.obs.view(T + 1, E, 5, -1)))
        assert torch.equal(rows[role].final_obs, part.select(every.final_obs.view(T, E, 5, -1)))
    assert not every.mask.all()
    assert every.ended.any()


class TestLearning:
    def test_each_agent_takes_the_action_of_its_policy(self) -> None:
        learner = make_learner(make_policies(), street())
        learner.collect()
        guard, walker = (learner.policies[role] for role in ("guard", "walker"))
        repeated_obs = [street().reset(seed=3)[0]]
        for t in range(T):
            action = torch.cat([p.buffer.action[t].view(E, -1) for p in (guard, walker)], 1)
            repeated_obs.append(street().step(action)[0])
        assert torch.equal(torch.stack(repeated_obs), learner.rollout.obs)
        # Each policy draws its own random numbers.
        assert not torch.equal(guard.buffer.action[:, :8], walker.buffer.action[:, :8])

    def test_each_policy_learns_from_its_own_agents_alone(self) -> None:
        """One policy's update is the same whatever the other policy's rewards were."""
        updates = []
        for other in (0.0, 1e6):
            learner = make_learner(make_policies(), street())
            learner.collect()
            learner.policies["walker"].rows.reward.add_(other)
            before = {k: p.clone() for k, p in learner.policies["walker"].parameters.items()}
            for part in learner.policies["guard"].begin_update(0):
                part()
            assert all(torch.equal(p, before[k]) for k, p in learner.policies["walker"].parameters.items())
            updates.append([p.detach().clone() for p in learner.policies["guard"].parameters.values()])
        assert all(torch.equal(x, y) for x, y in zip(*updates, strict=True))

    def test_metrics_are_named_by_role(self) -> None:
        result = train(make_policies(total_steps=3 * E * T))
        last = result.history[-1]
        assert {"guard/return", "guard/clip_fraction", "walker/return", "walker/entropy"} <= last.keys()
        assert "walker/clip_fraction" not in last
        episodes = run_episodes("tests/Street-v0", policies_by_role(result.networks), episodes=6, device="cpu", params=STREET)
        assert episodes.returns.shape == (6, 5)

    def test_roles_may_differ_between_environments(self) -> None:
        env = gym.make_vec("tests/Street-v0", E, device="cpu", output="torch", autoreset_mode="SameStep", **STREET)
        roles = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 0]])
        env.reset(seed=0)
        env.set_state({"role": roles})
        learner = make_learner(make_policies(), env)
        for _ in range(2):
            learner.iterate()
        for role, number in (("guard", 0), ("walker", 1)):
            rows, where = learner.policies[role].rows, roles == number
            assert torch.equal(rows.obs, learner.rollout.obs[:, where])
            assert torch.equal(rows.mask, learner.rollout.mask[:, where])
        env.close()

    @pytest.mark.parametrize("frozen", [False, True])
    def test_a_resumed_training_equals_an_uninterrupted_one(self, frozen: bool) -> None:
        policies = make_policies(total_steps=6 * E * T)
        if frozen:
            policies["guard"] = Frozen(train(make_policies(total_steps=E * T)).checkpoint, "guard")
        saved: list[Any] = []
        whole = train(policies, lambda learner, _: saved.append(learner.state_dict()) if learner.iteration == 3 else None)
        rest = train(policies, checkpoint=saved[0])
        for metrics, expected in zip(rest.history, whole.history[3:], strict=True):
            names = [name for name in expected if name not in ("seconds", "steps_per_second", "gpu_memory")]
            np.testing.assert_array_equal([metrics[n] for n in names], [expected[n] for n in names])
        for role in whole.networks:
            pairs = zip(rest.networks[role].parameters(), whole.networks[role].parameters(), strict=True)
            assert all(torch.equal(x, y) for x, y in pairs)

    def test_a_deterministic_policy_learns_beside_a_stochastic_one(self) -> None:
        shared: dict[str, Any] = {**TAG, "device": "cpu", "total_steps": 8 * 8 * 16}
        small: dict[str, Any] = {"buffer_size": 8 * 3 * 64, "batch_size": 32, "gradient_steps": 2, "learning_starts": 256}
        policies = {"tagger": ppo.PPOArgs(**shared), "runner": ddpg.DDPGArgs(**shared, **small, normalize=True)}
        result = train(policies)
        last = result.history[-1]
        assert np.isfinite([last["tagger/approx_kl"], last["runner/critic_loss"], last["runner/actor_loss"]]).all()
        args, network = load_policy(result.checkpoint, "cpu", role="runner")
        assert args == result.policies["runner"]
        obs = torch.randn(5, network.normalizer.mean.shape[0])
        assert torch.equal(network.policy(obs).mode(), result.networks["runner"].policy(obs).mode())


class TestCommandLine:
    def run(self, policies: dict[str, Any], folder: Path) -> Path:
        run = RunWriter.new(folder, "ppo", asdict(policies["walker"]))

        def on_iteration(learner: Learner, metrics: dict[str, float]) -> None:
            run.log(metrics)
            run.save(learner.state_dict())

        train(policies, on_iteration)
        run.close()
        return run.path

    def test_a_run_is_evaluated_and_resumed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("tyro")
        from gpuvec.cli import main

        path = self.run(make_policies(total_steps=2 * E * T, anneal_lr=False), tmp_path)
        assert main(["eval", str(path), "--episodes", "3", "--device", "cpu"]) == 0
        printed = capsys.readouterr().out
        assert "guard      mean return" in printed
        assert "walker     mean return" in printed
        assert main(["resume", str(path), "--total-steps", str(4 * E * T), "--episodes", "3"]) == 0
        assert "PPO and A2C on tests/Street-v0" in capsys.readouterr().out
        whole = train(make_policies(total_steps=4 * E * T, anneal_lr=False)).checkpoint
        resumed = load(path)
        assert resumed["iteration"] == 4
        for role in ("guard", "walker"):
            assert resumed["policies"][role].keys() == whole["policies"][role].keys()
            for name, x in whole["policies"][role]["network"].items():
                assert torch.equal(resumed["policies"][role]["network"][name], x)

    def test_a_run_against_a_script_is_resumed_in_python_only(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("tyro")
        from gpuvec.cli import main

        stand = Scripted(lambda obs: torch.ones(len(obs), dtype=torch.int64))
        path = self.run({**make_policies(total_steps=2 * E * T), "guard": stand}, tmp_path)
        assert main(["resume", str(path), "--total-steps", str(4 * E * T)]) == 1
        assert f"{path} contains no policy of guard, which did not learn" in capsys.readouterr().err
        assert main(["eval", str(path), "--device", "cpu"]) == 1
        assert "no policy of guard" in capsys.readouterr().err


class TestOpponents:
    def test_a_frozen_policy_acts_and_does_not_change(self) -> None:
        first = train(make_policies(total_steps=2 * E * T))
        before = {k: x.clone() for k, x in first.networks["guard"].state_dict().items()}
        policies = {**make_policies(total_steps=3 * E * T), "guard": Frozen(first.checkpoint, "guard", greedy=True)}
        result = train(policies)
        assert all(torch.equal(x, before[k]) for k, x in result.networks["guard"].state_dict().items())
        learner = make_learner(policies, street())
        learner.collect()
        known = first.networks["guard"].policy(learner.rollout.obs[-2, :, :2]).mode()
        assert torch.equal(learner.action[:, :2], known)

    def test_a_policy_of_all_agents_can_be_frozen_for_a_role(self) -> None:
        alone = train(replace(make_policies(total_steps=E * T)["guard"]))
        result = train({**make_policies(total_steps=E * T), "guard": Frozen(alone.checkpoint)})
        assert set(result.networks) == {"guard", "walker"}

    def test_a_script_decides_the_actions_of_its_agents(self) -> None:
        """The guards go left, so that all of them are at 0 after four steps."""
        policies = {**make_policies(), "guard": Scripted(lambda obs: torch.zeros(len(obs), dtype=torch.int64))}
        learner = make_learner(policies, street())
        learner.collect()
        rollout = learner.rollout
        whole = ~rollout.episode_start[1:7].any(0)  # environments whose first episode has not ended by then
        assert whole.any()
        assert (rollout.obs[4:7, whole, :2, 0] == 0.0).all()

    @pytest.mark.parametrize(
        ("opponent", "error", "words"),
        [
            (
                lambda: Scripted(lambda obs: torch.zeros(2)),
                ValueError,
                r"the scripted policy returns actions of shape \(2,\).*\(8,\)",
            ),
            (
                lambda: Scripted(lambda obs: torch.randint(2, (len(obs),))),
                ValueError,
                r"draws from torch's global generator.*give the function a parameter `generator`",
            ),
            (
                lambda: Frozen(train(make_policies(total_steps=E * T)).checkpoint, "thief"),
                StateError,
                "has policies for guard, walker",
            ),
            (
                lambda: Frozen(train(make_policies(total_steps=E * T)).checkpoint),
                StateError,
                "name one of these roles, not None",
            ),
            (lambda: Frozen(train(ppo.PPOArgs(device="cpu", num_envs=2, total_steps=64)).checkpoint), StateError, "CartPole"),
        ],
    )
    def test_an_opponent_that_does_not_fit_is_refused(self, opponent: Any, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            train({**make_policies(total_steps=E * T), "guard": opponent()})


class TestInvalidPolicies:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda p: {"guard": p["guard"]}, "policies for guard; the environment has guard, walker: give one for each"),
            (lambda p: {**p, "thief": p["guard"]}, "policies for guard, walker, thief; the environment has guard, walker"),
            (lambda p: {**p, "all": p["guard"]}, "policies for guard, walker, all"),
            (lambda p: {}, "no policy learns"),
            (lambda p: dict.fromkeys(p, Scripted(lambda obs: obs)), "no policy learns: of guard, walker at least one"),
            (
                lambda p: {**p, "guard": replace(p["guard"], num_envs=8)},
                "must have the same num_envs: it is 8 for guard and 4 for walker",
            ),
            (lambda p: {k: replace(x, target_return=1.0) for k, x in p.items()}, "target_return is for one policy"),
        ],
    )
    def test_the_error_names_the_fault(self, change: Any, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            train(change(make_policies()))

    def test_a_target_is_refused_for_one_policy_by_role(self) -> None:
        with pytest.raises(ValueError, match="target_return is for one policy of all agents"):
            shared_settings({"walker": ppo.PPOArgs(target_return=1.0)})

    def test_policies_by_role_need_an_env_with_roles(self) -> None:
        args = ppo.PPOArgs(device="cpu", num_envs=2)
        with pytest.raises(ValueError, match="policies for a, b; the environment has no roles"):
            train({"a": args, "b": args})

    def test_an_algorithm_for_other_actions_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a deterministic policy takes a bounded Box"):
            train(
                {**make_policies(), "guard": ddpg.DDPGArgs(**SHARED_SETTINGS, num_iterations=128, device="cpu").resolved("cpu")}
            )

    def test_a_role_can_have_its_own_body(self) -> None:
        feature_counts: list[int] = []

        def body(observations: Any, actions: Any) -> Any:
            feature_counts.append(observations.shape[0])
            return SeparateMLP(observations.shape[0], int(actions.n), (4,))

        result = train(make_policies(total_steps=E * T), body={"walker": body})
        assert result.networks["walker"].body.actor[0].out_features == 4
        assert result.networks["guard"].body.actor[0].out_features == 8
        assert feature_counts
        with pytest.raises(ValueError, match="there is a body for thief, but no settings of an algorithm"):
            train(make_policies(total_steps=E * T), body={"thief": body})

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda p: {"all": p["guard"]}, "has policies for guard, walker, and this training for all"),
            (lambda p: {**p, "guard": replace(p["guard"], hidden=(4,))}, "must have shape"),
            (lambda p: dict(zip(p, reversed(p.values()), strict=True)), "is of ppo; it cannot continue with a2c"),
            (
                lambda p: {**p, "guard": Scripted(lambda obs: torch.ones(len(obs), dtype=torch.int64))},
                "in this checkpoint guard, walker learned, and in this training walker would",
            ),
        ],
    )
    def test_a_checkpoint_of_another_training_is_refused(self, change: Any, words: str) -> None:
        policies = make_policies(total_steps=2 * E * T)
        checkpoint = train(policies).checkpoint
        with pytest.raises(StateError, match=words):
            train(change(policies), checkpoint=checkpoint)


@pytest.mark.gpu
def test_captured_iterations_equal_eager_ones(gpu: str) -> None:
    shared: dict[str, Any] = {**TAG, "num_envs": 64, "device": "cuda:0"}
    small: dict[str, Any] = {"buffer_size": 64 * 3 * 64, "batch_size": 64, "gradient_steps": 2, "learning_starts": 0}
    for algorithm in (ddpg.DDPGArgs(**shared, **small, num_iterations=128), a2c.A2CArgs(**shared)):
        policies = {"tagger": ppo.PPOArgs(**shared).resolved("cuda:0"), "runner": algorithm.resolved("cuda:0")}
        learners = []
        for captured in (False, True):
            env = gym.make_vec(TAG["env"], 64, device="cuda:0", output="torch", autoreset_mode="SameStep", **TAG["params"])
            learners.append(make_learner(policies, env))
            if captured:
                learners[-1].capture()
            for _ in range(10):
                learners[-1].iterate()
        eager, replayed = (learner.state_tensors()["policies"] for learner in learners)
        for role in eager:
            for name, x in eager[role]["network"].items():
                assert torch.equal(x, replayed[role]["network"][name]), f"{role} {name}"
