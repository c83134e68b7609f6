"""Training one policy of all agents against an opponent that plays some of them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

from gpuvec.learners.evaluation.players import win_or_block
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.training import open_learner, train

E, T = 8, 12
SMALL: dict[str, Any] = {
    "env": "gpuvec/ConnectFour-v0", "device": "cpu", "num_envs": E, "num_steps": T, "num_minibatches": 2, "hidden": (8,),
    "num_iterations": 3,
}  # fmt: skip


def last_allowed(obs: Tensor, action_mask: Tensor, generator: Any) -> Tensor:
    """Returns the last column that is not full, (E, A)."""
    return action_mask.shape[-1] - 1 - action_mask.flip(-1).int().argmax(-1)


def test_the_opponent_plays_one_agent_in_each_second_environment_and_is_not_learned_from() -> None:
    with open_learner({"all": PPOArgs(**SMALL).resolved("cpu")}, opponent=last_allowed) as learner:
        actions: list[Tensor] = []
        learner.on_action = lambda action: actions.append(action.clone())
        is_opponent = torch.zeros(E, 2, dtype=torch.bool)
        is_opponent[[0, 4], 0] = is_opponent[[2, 6], 1] = True
        for _ in range(2):
            actions.clear()
            learner.collect()
            rollout, rows = learner.rollout, learner.policy.rows
            played = torch.stack(actions)
            expected = last_allowed(rollout.obs[:-1], rollout.action_mask[:-1], None)
            assert torch.equal(played[:, is_opponent], expected[:, is_opponent])
            assert (played[:, ~is_opponent] != expected[:, ~is_opponent]).any()
            assert torch.equal(played[:, ~is_opponent], learner.policy.buffer.action.view(T, E, 2)[:, ~is_opponent])
            mask = rows.mask.view(T, E, 2)
            assert not mask[:, is_opponent].any()
            # Without an opponent one agent acts in each step.
            assert (mask[:, 1::2].sum(-1) == 1).all()
            assert 0.2 < mask[:, ::2].sum(-1).float().mean() < 0.8
            assert not rows.in_episode.view(T, E, 2)[:, is_opponent].any()
            learner.policy.estimate()


def test_a_training_against_an_opponent_depends_on_its_seed_alone() -> None:
    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(torch.seed() % 2**31)  # another state of the global generator for each training
        return list(train(PPOArgs(**SMALL, seed=seed), opponent=win_or_block).network.parameters())

    first, second, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    assert any(not torch.equal(p, q) for p, q in zip(first, other, strict=True))


def test_an_opponent_needs_agents_that_one_policy_plays_and_one_shard() -> None:
    for env in ("gpuvec/CartPole-v1", "gpuvec/TagGridWorld-v0"):
        args: Any = PPOArgs(env=env, device="cpu", num_envs=4, num_steps=4).resolved("cpu")
        configs = {"all": args} if "CartPole" in env else {"tagger": args, "runner": args}
        with pytest.raises(ValueError, match="train one policy for all"), open_learner(configs, opponent=last_allowed):
            pass
    with pytest.raises(ValueError, match="one shard, not 2: pass shards=1"):
        train(PPOArgs(**SMALL), shards=2, opponent=last_allowed)


def test_an_evaluation_is_against_the_opponent_and_changes_nothing() -> None:
    """The returns of both players add up to 0: without the opponent they cancel, and an untrained policy loses to it."""
    seconds = ("seconds", "steps_per_second", "gpu_memory")
    every: dict[str, Any] = {**SMALL, "evaluate_every": 1, "evaluate_episodes": 6, "num_iterations": 2}
    alone = train(PPOArgs(**every))
    assert [row["eval_return"] for row in alone.history] == [0.0, 0.0]
    beside, again = (train(PPOArgs(**every), opponent=win_or_block) for _ in range(2))
    plain = train(PPOArgs(**{**every, "evaluate_every": None}), opponent=win_or_block)
    assert beside.history[0]["eval_return"] < -0.5
    assert [row["eval_return"] for row in beside.history] == [row["eval_return"] for row in again.history]
    for one, other in zip(beside.history, plain.history, strict=True):
        assert {k: repr(one[k]) for k in other if k not in seconds} == {
            k: repr(x) for k, x in other.items() if k not in seconds
        }
    assert all(map(torch.equal, beside.network.parameters(), plain.network.parameters()))


@pytest.mark.gpu
def test_captured_trainings_against_an_opponent_equal_eager_ones(gpu: str) -> None:
    results = []
    for is_captured in (False, True):
        args = PPOArgs(**{**SMALL, "num_envs": 256, "device": "cuda:0"}).resolved("cuda:0")
        with open_learner({"all": args}, opponent=win_or_block) as learner:
            if is_captured:
                learner.capture()
            for _ in range(5):
                learner.iterate()
            results.append([p.clone() for p in learner.policy.network.parameters()])
    assert all(torch.equal(p, q) for p, q in zip(*results, strict=True))
