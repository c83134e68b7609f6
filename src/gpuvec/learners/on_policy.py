"""What A2C and PPO share: rollouts under the policy that learns, estimates of how good its actions were, checkpoints.

Each iteration has three parts, which read and write only tensors that were there before:

    collect    T steps of E environments under the current policy, straight into storage
    estimate   V of everything seen, generalised advantages, targets of the value function
    improve    the algorithm's own: what is learned from the rollout

On a CPU they run as they stand; on a GPU each is one CUDA graph, so an iteration is three launches and the host waits for
the device once, to read the metrics.

Environments of many agents come as `FlattenAgents`, and all agents share the policy: a row is then an agent, and the mask
tells which steps it was in the game for. The others enter no loss and no metric.

Letters: E rows (environments, or all of their agents), T steps, D observation features, K action components.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.errors import StateError
from gpuvec.learners.advantage import gae
from gpuvec.learners.algorithms import name_of
from gpuvec.learners.args import OnPolicyArgs
from gpuvec.learners.episodes import Episodes
from gpuvec.learners.graph import capture
from gpuvec.learners.masked import var_mean
from gpuvec.learners.networks import ActorCritic
from gpuvec.learners.optimizer import adam
from gpuvec.learners.schedule import interpolated
from gpuvec.learners.state import copies, restore
from gpuvec.vector.wrappers import FlattenAgents

PLAYED = ("episodes", "return", "length", "last_return", "explained_variance")  # metrics of a rollout


class Storage(NamedTuple):
    """A rollout, and what is estimated from it."""

    obs: Tensor  # (T + 1, E, D); the last row is the next rollout's first
    action: Tensor  # (T, E) or (T, E, K) int64, or (T, E, K) float32, as drawn from the policy
    log_prob: Tensor  # (T, E) of the action under the policy that took it
    reward: Tensor  # (T, E)
    terminated: Tensor  # (T, E) bool
    truncated: Tensor  # (T, E) bool
    final_obs: Tensor  # (T, E, D); where an episode ended, its last observation
    ended: Tensor  # (T, E) bool; where final_obs counts
    value: Tensor  # (T, E) V(obs)
    advantage: Tensor  # (T, E)
    target: Tensor  # (T, E) what V(obs) should have been
    mask: Tensor | None = None  # (T, E) bool: the agent was in the game; None if a row is an environment of one agent


class OnPolicy:
    """A learner on `env`, a SAME_STEP vector environment of one agent a row with torch output, with `args` (resolved).

    Args:
        args: the settings.
        env: the environment.
        loss: what is minimised: `loss(network, batch, args, entropy_weight)` gives the loss and metrics.
    """

    learned: tuple[str, ...] = ()  # names of the metrics of `improve`

    def __init__(
        self, args: OnPolicyArgs, env: gym.vector.VectorEnv[Any, Any, Any], loss: Callable[..., tuple[Tensor, Tensor]]
    ) -> None:
        self.loss = torch.compile(loss, fullgraph=True, dynamic=False) if args.compile else loss
        self.env: Any = env  # as one of gpuvec's, with `out` and `state_dict`
        self.args, self.iteration = args, 0
        T, E, device = args.num_steps, env.num_envs, args.device
        self.generator = torch.Generator(device).manual_seed(args.seed)
        first_weights = torch.Generator().manual_seed(args.seed)  # the same on every device
        spaces = env.single_observation_space, env.single_action_space
        self.network = ActorCritic(*spaces, args.hidden, first_weights, args.normalize)
        self.network.to(device)
        self.parameters = dict(self.network.named_parameters())
        self.learning_rate = torch.tensor(args.learning_rate, device=device)
        self.entropy_weight = torch.tensor(args.entropy_weight, device=device)
        self.optimizer = adam(self.parameters.values(), self.learning_rate, eps=1e-5)

        obs, _ = env.reset(seed=args.seed)
        if self.network.normalizer is not None:
            self.network.normalizer.update(obs)
        action = self.network.policy(obs).mode()

        def steps(shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32, extra: int = 0) -> Tensor:
            return torch.zeros((T + extra, E, *shape), dtype=dtype, device=device)

        self.storage = s = Storage(
            obs=steps(obs.shape[1:], extra=1), action=steps(action.shape[1:], action.dtype), log_prob=steps(), reward=steps(),
            terminated=steps(dtype=torch.bool), truncated=steps(dtype=torch.bool), final_obs=steps(obs.shape[1:]),
            ended=steps(dtype=torch.bool), value=steps(), advantage=steps(), target=steps(),
            mask=steps(dtype=torch.bool) if isinstance(env, FlattenAgents) else None,
        )  # fmt: skip
        s.obs[T].copy_(obs)
        self.episodes = Episodes.of(E, device)
        self.metrics = torch.zeros(len(PLAYED) + len(self.learned), device=device)
        self.out = [
            {"obs": s.obs[t + 1], "reward": s.reward[t], "terminated": s.terminated[t], "truncated": s.truncated[t],
             "final_obs": s.final_obs[t], "_final_obs": s.ended[t], **({} if s.mask is None else {"agent_mask": s.mask[t]})}
            for t in range(T)
        ]  # fmt: skip
        self.parts: tuple[Callable[[], None], ...] = (self.collect, self.estimate, self.improve)

    @torch.no_grad()
    def collect(self) -> None:
        """T steps of each row."""
        s = self.storage
        s.obs[0].copy_(s.obs[-1])
        for t, out in enumerate(self.out):
            policy = self.network.policy(s.obs[t])
            action = policy.sample(self.generator)
            s.action[t].copy_(action)
            s.log_prob[t].copy_(policy.log_prob(action))
            self.env.step(self.network.control(action), out=out)

    @torch.no_grad()
    def estimate(self) -> None:
        """Advantages and targets, from V of each step's true successor: a truncated episode's final observation counts."""
        s, a = self.storage, self.args
        value = self.network.value(s.obs)
        next_value = torch.where(s.ended, self.network.value(s.final_obs), value[1:])
        s.value.copy_(value[:-1])
        over = s.ended if s.mask is None else s.ended | s.terminated  # who leaves is done, while its env goes on
        s.advantage.copy_(gae(s.reward, s.value, next_value, s.terminated, over, a.gamma, a.gae_lambda))
        torch.add(s.advantage, s.value, out=s.target)
        last = over if s.mask is None else over & s.mask
        episodes, returns, lengths = self.episodes.add(s.reward, last, s.mask)
        unexplained = var_mean(s.advantage, s.mask)[0] / var_mean(s.target, s.mask)[0]  # target - value is the advantage
        means = [episodes, returns / episodes, lengths / episodes, self.episodes.last_return.mean(), 1.0 - unexplained]
        self.metrics[: len(PLAYED)] = torch.stack(means)

    def improve(self) -> None:
        """Learns from the rollout, and writes the metrics in `learned`."""
        raise NotImplementedError

    def update(self, loss: Tensor) -> Tensor:
        """One step of Adam against the gradient of `loss`, whose norm, before it is clipped, is returned."""
        gradient = torch.autograd.grad(loss, list(self.parameters.values()))
        for p, g in zip(self.parameters.values(), gradient, strict=True):
            p.grad = g
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.args.max_grad_norm)
        self.optimizer.step()
        return norm

    def capture(self) -> None:
        """Records each part as a CUDA graph; what this runs leaves no trace in the learner or its environments."""
        saved = self.state_dict()

        def version() -> int:
            return int(self.env.unwrapped.kernel_version)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # how Inductor tells of a choice it made
            parts = (self.collect, self.estimate, self.improve)
            self.parts = tuple(capture(part, self.args.device, self.generator, version) for part in parts)
        self.load_state_dict(saved)

    def iterate(self) -> None:
        """One iteration; waits for nothing."""
        a, steps = self.args, self.iteration * self.args.batch_size
        if a.learning_rate_table:
            self.learning_rate.fill_(interpolated(a.learning_rate_table, steps))
        elif a.anneal:
            self.learning_rate.fill_(a.learning_rate * (1.0 - self.iteration / a.iterations))
        if a.entropy_table:
            self.entropy_weight.fill_(interpolated(a.entropy_table, steps))
        for part in self.parts:
            part()
        self.iteration += 1

    def read(self) -> dict[str, float]:
        """The metrics of the last iteration; the one place that waits for the device."""
        return dict(zip(PLAYED + self.learned, self.metrics.tolist(), strict=True))

    def tensors(self) -> dict[str, Any]:
        """All tensors that the next iteration depends on, as nested dicts."""
        optimizer = {name: dict(self.optimizer.state[p]) for name, p in self.parameters.items()}
        episodes = self.episodes._asdict()
        return {"network": self.network.state_dict(), "optimizer": optimizer, "episodes": episodes, "obs": self.storage.obs[-1]}

    def state_dict(self) -> dict[str, Any]:
        """A checkpoint: copies of tensors, numbers and strings, from which training goes on as if it had not stopped."""
        return {
            **copies(self.tensors()), "generator": self.generator.get_state(), "env": self.env.state_dict(),
            "iteration": self.iteration, "algorithm": name_of(self.args), "args": asdict(self.args),
        }  # fmt: skip

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called.

        Raises:
            StateError: a checkpoint of other settings.
        """
        if saved["algorithm"] != name_of(self.args):
            raise StateError(f"this checkpoint is of {saved['algorithm']}; it cannot go on with {name_of(self.args)}.")
        if saved["generator"].shape != self.generator.get_state().shape:
            raise StateError(
                f"this checkpoint was written on {saved['args']['device']}; it cannot go on on {self.args.device}."
            )
        own = self.tensors()
        restore(own, {name: saved.get(name, {}) for name in own})
        self.generator.set_state(saved["generator"].cpu())
        self.env.load_state_dict(saved["env"])
        self.iteration = saved["iteration"]
