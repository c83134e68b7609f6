"""Trainings by fused PPO with emulated kernels, against PyTorch operations, and in several shards against one shard."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.cuda_emulator import emulate

from gpuvec.engine.backends.cuda import nvrtc
from gpuvec.learners.environments import policy_roles
from gpuvec.learners.fused_ppo import fused_policy, fused_rollout, fused_update, pooled_update, select_path
from gpuvec.learners.fused_ppo.fused_policy import FusedPPO
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.training import train

# With one minibatch the order of the samples has no effect, which differs between shards and kernels.
ARGS = PPOArgs(
    env="gpuvec/CartPole-v1", num_envs=16, num_steps=8, num_iterations=2, num_minibatches=1, update_epochs=1, hidden=(32,),
    params={"max_episode_steps": 5}, device="cpu", fused=True, seed=3,
)  # fmt: skip
METRICS = ("episodes", "return", "length", "last_return", "explained_variance", "value_loss", "entropy", "grad_norm")


class StepwiseRollout:
    """Fills a rollout step by step, in place of the kernel, which is linked with functions of the environment."""

    policy: Any = None

    def __init__(self, update: Any, rollout: Any, *args: Any, first_row: int | None) -> None:
        self.rollout = rollout

    def __call__(self, *outputs: Any) -> None:
        rollout, policy = self.rollout, self.policy
        rollout.begin_rollout()
        for t in range(rollout.num_steps):
            rollout.update_views(t)
            rollout.step(t, policy.act(t, rollout.episode_start[t]))
        rollout.update_rows()
        policy.buffer.value.copy_(policy.network.value(policy.buffer.value_obs))
        policy.compute_final_values()


@pytest.fixture
def emulated(monkeypatch, tmp_path) -> None:
    """Makes the fused kernels run on a CPU."""
    launchers: dict[Any, Any] = {}

    def make_launcher(kernel: Any, device: Any) -> Any:
        if kernel not in launchers:
            folder = tmp_path / str(len(launchers))
            folder.mkdir()
            launchers[kernel] = emulate(kernel, folder, concurrent=kernel.name == "optimizer")
        return lambda *grid, dependent_launch=False, **members: launchers[kernel](grid, **members)

    link = FusedPPO.fused_rollout

    def link_stepwise(policy: Any, rollout: Any) -> Any:
        stage = link(policy, rollout)
        if policy._run_rollout is not None:
            policy._run_rollout.policy = policy
        return stage

    for module in (fused_rollout, fused_update, pooled_update):
        monkeypatch.setattr(module, "make_tensor_launcher", make_launcher)
    monkeypatch.setattr(fused_policy, "FusedRollout", StepwiseRollout)
    monkeypatch.setattr(FusedPPO, "fused_rollout", link_stepwise)
    monkeypatch.setattr(select_path, "_reason_without_kernels", lambda *_: "")
    monkeypatch.setattr(pooled_update, "reason_too_large", lambda *_: "")
    monkeypatch.setattr(nvrtc, "max_shared_memory", lambda *_: 232_448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))


@pytest.mark.slow
@pytest.mark.compile
def test_shards_train_as_one_shard_and_as_torch_operations(emulated, caplog) -> None:
    with caplog.at_level("INFO"):
        sharded = train(ARGS, shards=4)
    assert "adds the gradients of 4 shards in its optimiser" in caplog.text
    whole, plain = train(ARGS), train(dataclasses.replace(ARGS, fused=False), shards=4)
    for other, tolerance in ((whole, 1e-6), (plain, 1e-4)):  # the kernels have operands in FP16
        for name, x in other.networks["all"].state_dict().items():
            torch.testing.assert_close(sharded.networks["all"].state_dict()[name], x, rtol=0.0, atol=tolerance, msg=name)
        for metrics, expected in zip(sharded.history, other.history, strict=True):
            for name in METRICS:
                assert metrics[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name


LEARNED = ("value_loss", "policy_loss", "entropy", "grad_norm", "approx_kl")
GAMES: dict[str, dict[str, Any]] = {
    # Two roles that read their agents in place, with episodes that end, terminated and truncated.
    "gpuvec/TagContinuous-v0": {"params": {"num_taggers": 2, "num_runners": 3, "grid_length": 1.0, "max_episode_steps": 5}},
    "gpuvec/SimpleSpeakerListener-v0": {"params": {"max_episode_steps": 5}},  # roles with spaces of their own
    "gpuvec/EpidemicEconomy-v0": {"params": {"num_states": 2, "max_episode_steps": 5}, "num_envs": 4},  # action masks
    "gpuvec/CartPole-v1": {"normalize": True},
    "gpuvec/Pendulum-v1": {"hidden": (256, 256), "params": {"max_episode_steps": 5}},  # activations are kept
}


@pytest.mark.compile
@pytest.mark.parametrize("env", [game if "Tag" in game else pytest.param(game, marks=pytest.mark.slow) for game in GAMES])
def test_a_game_trains_as_by_torch_operations(env, emulated) -> None:
    args = dataclasses.replace(ARGS, **{"params": {}, "env": env, "num_iterations": 3, **GAMES[env]})

    def run(fused: bool) -> Any:
        settings = dataclasses.replace(args, fused=fused)
        roles = ("tagger", "runner") if "Tag" in env else policy_roles(env, args.params)
        return train(dict.fromkeys(roles, settings))

    fused, plain = run(True), run(False)
    for metrics, expected in zip(fused.history, plain.history, strict=True):
        names = [name for name in expected if name.split("/")[-1] in (*METRICS, *LEARNED)]
        assert len(names) >= len({*METRICS, *LEARNED})
        for name in names:
            assert metrics[name] == pytest.approx(expected[name], rel=5e-3, abs=2e-4, nan_ok=True), name
    for role, network in plain.networks.items():
        weights, own = (torch.nn.utils.parameters_to_vector(n.parameters()) for n in (network, fused.networks[role]))
        assert (own - weights).norm() < 1e-3 * weights.norm(), role  # Adam amplifies rounding where gradients vanish
