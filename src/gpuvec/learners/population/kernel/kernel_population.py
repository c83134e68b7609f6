"""A population that is trained by one kernel, whose blocks are agents.

Letters: P agents, E environments of an agent, R = P * E rows, D observation features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpuvec.engine.backends.cuda.nvrtc import max_shared_memory
from gpuvec.engine.backends.device import parse_device
from gpuvec.errors import DeviceError, StateError
from gpuvec.learners.cuda_graphs.graph import clone_tensors, copy_into
from gpuvec.learners.cuda_graphs.launches import make_tensor_launcher
from gpuvec.learners.environments import TrainingEnv
from gpuvec.learners.fused_ppo.linked_env import bounds_and_starts, link_env
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.population.batched.batched_population import GROUP_SIZES
from gpuvec.learners.population.batched.population_evaluator import PopulationEvaluator
from gpuvec.learners.population.kernel.population_kernel import (
    HOPPER,
    MAX_HIDDEN,
    MIN_COMPUTE_CAPABILITY,
    KernelParameterLayout,
    KernelVariant,
    PopulationShape,
    population_kernel,
)
from gpuvec.learners.population.population_args import METRICS, PopulationArgs
from gpuvec.learners.population.state.agent_state import AgentState, agent_bytes, require_population_memory
from gpuvec.learners.population.state.environment import make_population_env, row_streams
from gpuvec.learners.ppo import PPO
from gpuvec.learners.seeds import ACTIONS, MINIBATCHES, stream_seed


def device_variant(device: str) -> KernelVariant:
    """Returns the variant of the kernel for a GPU: Hopper's own, or the portable one with the shared memory of the GPU.

    Args:
        device: "cuda:<index>".
    """
    if torch.cuda.get_device_capability(device) == (9, 0):
        return HOPPER
    return KernelVariant(True, max_shared_memory(parse_device(device)))


def reason_without_kernel(args: PopulationArgs) -> str:
    """Returns why the kernel cannot train a population in any environment, or "".

    Args:
        args: the settings, resolved.

    Raises:
        DeviceError: fused=True, and the GPU is older than those that have the instructions of the kernel.
    """
    base = args.base
    if not base.device.startswith("cuda"):
        return f"the device is {base.device}, and the kernel needs a GPU"
    if (capability := torch.cuda.get_device_capability(base.device)) < MIN_COMPUTE_CAPABILITY:
        needed = "{}.{} or newer".format(*MIN_COMPUTE_CAPABILITY)
        reason = "the compute capability is {}.{}, and the kernel needs {}".format(*capability, needed)
        if base.fused is True:
            raise DeviceError(f'fused=True, but the kernel cannot be used: {reason}. Use fused="auto", or another GPU.')
        return reason
    if max(base.hidden) > MAX_HIDDEN:
        return f"hidden layers are {base.hidden}; the kernel supports at most {MAX_HIDDEN} units, which are nearest"
    if base.normalize or base.normalize_returns:
        return "observations or returns are normalised (normalize, normalize_returns), which the kernel does not support"
    if base.target_kl is not None:
        return "target_kl is set, at which the kernel does not stop"
    return ""


def make_shape(args: PopulationArgs, env: TrainingEnv, variant: KernelVariant) -> PopulationShape | str:
    """Returns the shape of a training, or why the kernel does not support it.

    Args:
        args: the settings, resolved.
        env: the environment of the population.
        variant: of the kernel.
    """
    base, space = args.base, env.single_action_space
    assert base.num_envs is not None, "the settings are resolved"
    if not isinstance(space, gym.spaces.Box | gym.spaces.Discrete):
        return f"the action space is {space}; the kernel supports Discrete and Box"
    gaussian = isinstance(space, gym.spaces.Box)
    outputs = int(space.shape[0]) if isinstance(space, gym.spaces.Box) else int(space.n)
    features = (env.single_observation_space.shape or (0,))[0]
    shape = PopulationShape(
        features, outputs, outputs if gaussian else 1, gaussian, len(base.hidden), base.activation == "relu", base.clip_value,
        base.num_envs, base.num_steps, base.update_epochs, base.num_minibatches, env.unwrapped.max_episode_steps, variant,
    )  # fmt: skip
    return shape.reason_not_supported() or shape


def make_kernel_population(args: PopulationArgs) -> KernelPopulation | str:
    """Returns a population that is ready to learn, or why the kernel does not support it.

    Args:
        args: the settings, resolved.

    Raises:
        ValueError: an environment that a population does not support.
        DeviceError: as of `reason_without_kernel`.
        OutOfMemoryError: the agents do not fit into the memory that is free.
    """
    if reason := reason_without_kernel(args):
        return reason
    env = make_population_env(args)
    shape = make_shape(args, env, device_variant(args.base.device))
    if isinstance(shape, str):
        env.close()
        return shape
    return KernelPopulation(args, env, shape)


class KernelPopulation:
    """A population that learns.

    Args:
        args: the settings, resolved.
        env: its environment, which it closes.
        shape: of the training.

    Raises:
        OutOfMemoryError: the agents do not fit into the memory that is free.
    """

    name = "one kernel, whose blocks are agents"
    """What trains, for messages."""

    def __init__(self, args: PopulationArgs, env: TrainingEnv, shape: PopulationShape) -> None:
        self.args, self.env, self.shape, self.iteration = args, env, shape, 0
        device, features = args.base.device, shape.features
        self.network: ActorCritic = PPO.make_network(args.base, env.single_observation_space, env.single_action_space)
        """The network of an agent, on the CPU, with any parameters."""
        layout = KernelParameterLayout(self.network, shape)
        require_population_memory(args, agent_bytes(args, layout.num_floats, features, shape.action_size))
        self.state = AgentState(args, self.network, layout)
        self._evaluator = PopulationEvaluator(args, self.network, self.state, None, GROUP_SIZES[device.partition(":")[0]])
        obs, _ = env.reset(seed=row_streams(args))
        self._obs = torch.as_tensor(obs, device=device).clone()
        base_env = env.unwrapped
        self._final_obs = torch.zeros_like(self._obs)
        self._final_mask = torch.zeros(env.num_envs, dtype=torch.bool, device=device)
        functions, self._env_members = link_env(base_env, self._final_obs, self._final_mask, has_shared_envs=True)
        self._clock = torch.as_tensor(base_env.simulation.buffers["clock"].view(np.int32), device=device)
        self._bounds, starts = bounds_and_starts(base_env.single_action_space, shape.action_size, device)
        self._launch = make_tensor_launcher(population_kernel(shape, functions, starts[0]), parse_device(device))
        samples = 0 if shape.memory.samples else args.num_agents * shape.sample_bytes // 4
        self._samples = torch.zeros(samples, device=device)
        purposes = {"action_seeds": ACTIONS, "order_seeds": MINIBATCHES}
        self._stream_seeds = {
            name: torch.tensor([stream_seed(seed, purpose) for seed in args.seeds], device=device)
            for name, purpose in purposes.items()
        }

    @property
    def stopped_at(self) -> Tensor:
        """(P,) int64: the iteration in which an agent was stopped, because a number was not finite; -1 for one that runs."""
        return self.state.stopped_at

    def capture(self) -> None:
        """Does nothing: a launch is one kernel."""

    def close(self) -> None:
        """Frees the environments."""
        self.env.close()
        self._evaluator.close()

    def evaluate(self) -> Tensor:
        """Returns the mean return of each agent in an evaluation, see `PopulationEvaluator`, (P,) float32 on the CPU."""
        return self._evaluator.evaluate(self.iteration)

    @torch.no_grad()
    def advance(self, iterations: int) -> Tensor:
        """Runs iterations asynchronously, and returns their `METRICS`, (iterations, metrics, P) float32.

        The numbers of agents that were stopped before an iteration are nan.

        Args:
            iterations: the number of iterations.
        """
        args, base, state = self.args, self.args.base, self.state
        metrics = torch.full((iterations, len(METRICS), args.num_agents), torch.nan, device=base.device)
        self._launch(
            args.num_agents, parameters=state.parameters, exp_avg=state.adam.exp_avg, exp_avg_sq=state.adam.exp_avg_sq,
            adam_step=state.adam.step, **state.settings, **self._stream_seeds,
            **state.episodes._asdict(), **self._bounds, **self._env_members, clock=self._clock, obs=self._obs,
            final_obs=self._final_obs, metrics=metrics, fault=state.fault, stopped_at=state.stopped_at, samples=self._samples,
            first_iteration=self.iteration, num_iterations=iterations, num_updates=self.shape.num_updates,
            anneal_iterations=base.iterations if base.anneal_lr else 0, num_agents=args.num_agents,
            max_grad_norm=base.max_grad_norm,
        )  # fmt: skip
        self._clock.add_(iterations * self.shape.num_steps)
        state.num_rollouts.add_(iterations)
        self.iteration += iterations
        return metrics

    def _all_tensors(self) -> dict[str, Any]:
        return {**self.state.tensors(), "obs": self._obs}

    def tensors(self) -> dict[str, Any]:
        """Returns copies of all tensors that the next iteration depends on, without those of the environment."""
        episode_start = self.state.episodes.running_length == 0.0
        return clone_tensors({**self._all_tensors(), "episode_start": episode_start})

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next iteration depends on: copies of `tensors`, the environment and the iteration."""
        env = self.env.state_dict()
        return {"tensors": self.tensors(), "env": {**env, "seed": list(env["seed"])}, "iteration": self.iteration}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from the moment at which `state_dict` was called.

        Args:
            saved: its result, of a population with the same seeds, networks and environment.

        Raises:
            StateError: a state of another population.
        """
        if not isinstance(saved, Mapping) or saved.keys() != {"tensors", "env", "iteration"}:
            raise StateError("this is no state of a population.")
        if saved["env"]["seed"] != row_streams(self.args).seeds:
            raise StateError(f"this state is of other seeds than those of this population's {self.args.num_agents} agents.")
        tensors = {name: x for name, x in saved["tensors"].items() if name != "episode_start"}
        copy_into(self._all_tensors(), tensors)
        self.env.load_state_dict(saved["env"])
        self.iteration = saved["iteration"]

    def set_settings(self, name: str, values: ArrayLike) -> None:
        """Changes a setting of all agents for the iterations that follow.

        Args:
            name: one of `AGENT_SETTINGS`.
            values: P values.
        """
        self.state.set_settings(name, values)

    def copy_learned(self, source: ArrayLike) -> None:
        """Gives each agent the parameters and the moments of another one; settings and environments do not change.

        An agent that was stopped continues if it takes those of one that runs.

        Args:
            source: P numbers of agents; the own number for an agent that keeps what it has, as each agent that is copied does.
        """
        self.state.copy_learned(source)
