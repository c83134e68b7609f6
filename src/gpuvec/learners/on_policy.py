"""What A2C and PPO share: actions drawn from the policy that learns, and estimates of how good they were.

After a rollout come two parts:

    estimate   V of everything seen, generalised advantages, targets of the value function
    improve    the algorithm's own: what is learned from the rollout

In a game of many agents a row is an agent, and the mask tells which steps it was in the game for. The others enter no loss
and no metric.

Letters: T steps, R rows, D observation features, K action components.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gpuvec.learners.algorithms import ALL
from gpuvec.learners.buffers.memory_check import FLOAT32_BYTES, require_memory
from gpuvec.learners.config.schedule import interpolate
from gpuvec.learners.config.training_config import OnPolicyArgs
from gpuvec.learners.cuda_graphs.guard import ALLOWED, LEARNED, Guard
from gpuvec.learners.cuda_graphs.optimizer import Adam
from gpuvec.learners.estimators.advantage import AdvantageEstimator
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.estimators.masked_moments import masked_var_mean
from gpuvec.learners.estimators.reward_scaling import RewardScaler
from gpuvec.learners.networks.actor_critic import ActorCritic, Body, features_of, outputs_of
from gpuvec.learners.networks.mlp import Separate, Shared, first_weights
from gpuvec.learners.policy import Policy, PolicyContext, optimizer_state
from gpuvec.learners.sampling.sampler import Drawn
from gpuvec.learners.seeds import WEIGHTS, stream_seed

ROLLOUT_METRICS = ("episodes", "return", "length", "last_return", "explained_variance")  # metrics of a rollout


class RolloutBuffer(NamedTuple):
    """A rollout, and what is estimated from it."""

    obs: Tensor  # (T + 1, R, D); the last row is the next rollout's first
    action: Tensor  # (T, R) or (T, R, K) int64, or (T, R, K) float32, as drawn from the policy
    log_prob: Tensor  # (T, R) of the action under the policy that took it
    reward: Tensor  # (T, R)
    terminated: Tensor  # (T, R) bool
    ended: Tensor  # (T, R) bool: the environment's episode is over
    final_obs: Tensor  # (T, R, D); where it is, its last observation
    value: Tensor  # (T + 1, R) V(obs)
    advantage: Tensor  # (T, R)
    target: Tensor  # (T, R) what V(obs) should have been
    mask: Tensor | None = None  # (T, R) bool: the agent was in the game; None if a row is an environment of one agent


class OnPolicy(Policy):
    """The policy of `context` with the settings `args` (resolved).

    Args:
        args: the settings.
        context: its place in the game.
        loss: what is minimised: `loss(network, batch, args, ent_coef)` gives the loss and metrics.
        body: makes the network, see `networks.actor_critic`; by default a perceptron as `args` have it.
    """

    args: OnPolicyArgs
    network: ActorCritic
    learned: tuple[str, ...] = ()  # names of the metrics of `improve`

    def __init__(
        self, args: OnPolicyArgs, context: PolicyContext, loss: Callable[..., tuple[Tensor, Tensor]], body: Body | None = None
    ) -> None:
        self.loss = torch.compile(loss, fullgraph=True, dynamic=False) if args.compile else loss
        self.names = ROLLOUT_METRICS + self.learned
        super().__init__(args, context)
        device, rows = args.device, context.rows
        T, R = rows.reward.shape
        self.network = self.networks(args, context.observation_space, context.action_space, body, context.role).to(device)
        self.parameters = dict(self.network.named_parameters())
        self.learning_rate = torch.tensor(args.learning_rate, device=device)
        self.ent_coef = torch.tensor(args.ent_coef, device=device)
        self.optimizer = Adam(self.parameters.values(), self.learning_rate, eps=1e-5)
        action = self.network.policy(rows.obs[0]).mode()
        stored = T * R * (5 * FLOAT32_BYTES + action[0].numel() * action.element_size())
        require_memory(device, stored, f"what is estimated from a rollout of {T:,} steps of {R:,} rows")
        log_prob, advantage, target, self.last_value = torch.zeros(4, T, R, device=device)
        self.storage = RolloutBuffer(
            **rows._asdict(), action=action.new_zeros((T, *action.shape)), log_prob=log_prob,
            value=torch.zeros(T + 1, R, device=device), advantage=advantage, target=target,
        )  # fmt: skip
        self.value_with_policy = hasattr(self.network.body, "both")  # whether V comes with the policy
        self.has_values = False  # whether V of all that was seen is there when `estimate` begins
        self.truncations = context.truncations
        self.episodes = EpisodeStatistics.of(R, device)
        self.advantage = AdvantageEstimator(device, args.gamma, args.gae_lambda)
        self.return_scale = RewardScaler(R, args.gamma, device) if args.normalize_returns else None
        self.entropy = torch.zeros(R, device=device)  # of the policy in the last step
        self.masked = hasattr(self.network.body, "allowed")
        looks = {"collect": ("a reward", "the policy's log-probability of an action"), "estimate": ("a value", "an advantage")}
        self.guard = Guard({"act": (ALLOWED,), **looks} if self.masked else looks, LEARNED, device)
        self.parts = (self.estimate, self.improve)

    @staticmethod
    def networks(
        args: OnPolicyArgs, observation_space: Any, action_space: Any, body: Body | None = None, role: str = ALL
    ) -> ActorCritic:
        """Those of a role's policy for these spaces of an agent, with their first weights."""
        spaces = observation_space, action_space
        if body is not None and args.precision != "tf32":
            raise ValueError(f"precision={args.precision!r} is for the layers of `hidden`; a body of one's own has its own.")

        def perceptron(observations: Any, actions: Any) -> nn.Module:
            kind = Shared if args.shared else Separate
            return kind(
                features_of(observations), outputs_of(actions), args.hidden, args.weight_init, args.activation, args.precision
            )

        with first_weights(stream_seed(args.seed, WEIGHTS, role)):
            return ActorCritic(*spaces, (body or perceptron)(*spaces), args.normalize)

    def begin(self) -> None:
        """The first observations are the first that are known of any."""
        if self.network.normalizer is not None:
            self.network.normalizer.update(self.storage.obs[-1])

    def act(self, t: int, began: Tensor) -> Tensor:
        """Draws."""
        s, net = self.storage, self.network
        if self.value_with_policy:
            policy, value = net.both(s.obs[t])
            s.value[t].copy_(value)
        else:
            policy = net.policy(s.obs[t])
        policy.draw(self.sampler, self.rounds, t, Drawn(s.action[t], s.log_prob[t], self.entropy))
        return net.control(s.action[t])

    def check_rollout_finite(self) -> None:
        """Whether it is finite."""
        super().check_rollout_finite()
        if self.masked:
            s = self.storage
            some = self.network.some_allowed(s.obs[:-1])
            self.guard.check_allowed(some if s.mask is None else some | ~s.mask)
        self.guard.check_rows_finite("collect", self.storage.reward, self.storage.log_prob)

    @torch.no_grad()
    def estimate(self) -> None:
        """Advantages and targets, from V of each step's true successor: a truncated episode's final observation counts."""
        s, over = self.storage, self.rows.over
        if not self.has_values:
            unknown = slice(-1, None) if self.value_with_policy else slice(None)
            s.value[unknown] = self.network.value(s.obs[unknown])
            self.value_truncated()
        reward = s.reward * self.args.reward_scale
        if self.return_scale is not None:
            reward = self.return_scale(reward, over, s.mask)
        self.advantage(reward, s.value, self.last_value, s.terminated, s.ended, (s.advantage, s.target))
        self.guard.check_rows_finite("estimate", s.value, s.advantage)
        last = over if s.mask is None else over & s.mask
        episodes, returns, lengths = self.episodes.add(s.reward, last, s.mask)
        unexplained = (
            masked_var_mean(s.advantage, s.mask)[0] / masked_var_mean(s.target, s.mask)[0]
        )  # target - value is the advantage
        means = [episodes, returns / episodes, lengths / episodes, self.episodes.last_return.mean(), 1.0 - unexplained]
        self.metrics[: len(ROLLOUT_METRICS)] = torch.stack(means)

    def value_truncated(self) -> None:
        """V of the final observations of truncated episodes, in `last_value`; what stands elsewhere there means nothing.

        An episode takes as many steps as its limit before it is truncated, so a row has but few of them, whose number is known:
        they are taken one of each row at a time, and V is asked for R rows each time instead of T * R.
        """
        s = self.storage
        late = s.ended & ~s.terminated
        for _ in range(self.truncations):
            at = late.byte().argmax(0, keepdim=True)  # (1, R): each row's first
            last = s.final_obs.gather(0, at.unsqueeze(-1).expand(-1, -1, s.final_obs.shape[-1])).squeeze(0)
            self.last_value.scatter_(0, at, self.network.value(last).unsqueeze(0))
            late = late.scatter(0, at, False)

    def improve(self) -> None:
        """Learns from the rollout, and writes the metrics in `learned`."""
        raise NotImplementedError

    @torch.no_grad()
    def check_update_finite(self) -> None:
        """At the end of `improve`: whether all that was learned is finite."""
        self.guard.check_update_finite(self.metrics[-len(self.learned) :], self.parameters.values())

    def update(self, loss: Tensor) -> Tensor:
        """One step of Adam against the gradient of `loss`, whose norm, before it is clipped, is returned."""
        gradient = torch.autograd.grad(loss, list(self.parameters.values()))
        for p, g in zip(self.parameters.values(), gradient, strict=True):
            p.grad = g
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.args.max_grad_norm)
        self.optimizer.step()
        return norm

    def prepare(self, iteration: int) -> tuple[Callable[[], None], ...]:
        """Learning rate and entropy weight of this iteration."""
        a, steps = self.args, iteration * self.args.steps_per_iteration
        if a.learning_rate_table:
            self.learning_rate.fill_(interpolate(a.learning_rate_table, steps))
        elif a.anneal_lr:
            self.learning_rate.fill_(a.learning_rate * (1.0 - iteration / a.iterations))
        if a.ent_coef_table:
            self.ent_coef.fill_(interpolate(a.ent_coef_table, steps))
        return self.parts

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        scale = {} if self.return_scale is None else self.return_scale.tensors()
        optimizer = optimizer_state(self.optimizer, self.parameters)
        return {
            "network": self.network.state_dict(), "optimizer": optimizer, "episodes": self.episodes._asdict(),
            "return_scale": scale, **super().tensors(),
        }  # fmt: skip
