"""Populations whose kernel is emulated on a CPU, or runs on a GPU, in an environment that also exists in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from tests.support.cuda_emulator import emulate
from torch import Tensor

from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions
from gpuvec.engine.backends.cuda.nvrtc import CudaSource, max_shared_memory
from gpuvec.engine.backends.device import parse_device
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.cuda_graphs.launches import make_tensor_launcher
from gpuvec.learners.estimators.episode_statistics import EpisodeStatistics
from gpuvec.learners.networks.actor_critic import ActorCritic
from gpuvec.learners.networks.mlp import SeparateMLP
from gpuvec.learners.population.kernel.population_kernel import (
    HOPPER,
    KernelParameterLayout,
    KernelVariant,
    PopulationShape,
    population_kernel,
)
from gpuvec.learners.population.population_args import METRICS
from gpuvec.learners.population.state.parameters import evaluate_layers, layers_of

LIMIT, PERIOD = 7, 11  # steps of an episode, and steps after which all episodes terminate

# The features decay, and are pushed by the action; the state are the features.
ENV_FUNCTIONS = """
extern "C" __device__ int env_load(const u64* batch, i64 e, u32* start, u32* rng_stream, float* fields, int*) {
    *start = ((u32*)batch[1])[e];
    for (int k = 0; k < D; k++) fields[k] = ((float*)batch[0])[e * D + k];
    return 0;
}
extern "C" __device__ int env_observe(const u64* batch, i64 e, const float* fields, const int*, float* row) {
    for (int k = 0; k < D; k++) row[k] = fields[k];
    return 0;
}
extern "C" __device__ int env_step(const u64* batch, i64 e, i64 at, u32 clock, u32* start, const u32*, float* fields, int*,
    const Component* action, float* row, float* reward) {
    for (int k = 0; k < D; k++) {
        const float push = GAUSSIAN ? (float)action[k % K] : (float)((int)action[0] % 3);
        fields[k] = 0.9f * fields[k] + 0.4f * (push - 0.4f) + 0.01f * (k % 8 + 1) * (clock % 5);
    }
    *reward = fields[0] > 50.0f ? NAN : 3.0f - fields[0] - 2.0f * (GAUSSIAN ? (float)action[0] : (float)((int)action[0] % 3));
    const int end = (clock % PERIOD == 0 ? 1 : 0) | (clock - *start >= LIMIT ? 2 : 0);
    if (end) *start = clock;
    for (int k = 0; k < D && end; k++) {
        ((float*)batch[2])[at * D + k] = fields[k];
        fields[k] = 0.05f * (k % 8 + 1) * (clock % 3 - 1.0f);
    }
    for (int k = 0; k < D; k++) row[k] = fields[k];
    return end;
}
extern "C" __device__ int env_store(const u64* batch, i64 e, u32 start, const float* fields, const int*) {
    ((u32*)batch[1])[e] = start;
    for (int k = 0; k < D; k++) ((float*)batch[0])[e * D + k] = fields[k];
    return 0;
}
"""
SETTINGS = {
    "ent_coef": (0.02, 0.01), "vf_coef": (0.6, 0.5), "gamma": (0.95, 0.9), "gae_lambda": (0.9, 0.8), "clip": (0.2, 0.15),
    "reward_scale": (0.7, 1.0),
}  # fmt: skip
ACTION_SEEDS, ORDER_SEEDS = (77, 2**40 + 5), (3, 2**33 + 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """A training."""

    space: Box | Discrete
    features: int
    learning_rate: tuple[float, float]  # of both agents, with which no sample of the last minibatch is at a kink of the loss
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    clip_value: bool = True
    num_envs: int = 2
    num_steps: int = 64
    epochs: int = 2
    num_minibatches: int = 2

    @property
    def shape(self) -> PopulationShape:
        gaussian = isinstance(self.space, Box)
        outputs = self.space.shape[0] if isinstance(self.space, Box) else int(self.space.n)
        return PopulationShape(
            self.features, outputs, outputs if gaussian else 1, gaussian, len(self.hidden), self.activation == "relu",
            self.clip_value, self.num_envs, self.num_steps, self.epochs, self.num_minibatches, LIMIT,
        )  # fmt: skip

    def network(self) -> ActorCritic:
        args = PPOArgs(device="cpu", hidden=self.hidden, activation=self.activation)
        body = SeparateMLP(self.features, self.shape.outputs, args.hidden, args.weight_init, args.activation)
        return ActorCritic(Box(-1.0, 1.0, (self.features,)), self.space, body, False)


CASES = {
    "two actions": Case(Discrete(2), 4, (0.004, 0.03), num_envs=4),
    "gaussian": Case(Box(-1.0, 1.0, (2,)), 3, (0.02, 0.015), clip_value=False),
    "relu, one layer, smaller": Case(Discrete(3), 6, (0.025, 0.04), (32,), "relu", num_envs=4),
    "nine actions, wide, passes": Case(Discrete(9), 9, (0.04, 0.04), (48, 32), num_envs=8, num_steps=48),
    "32 actions, 40 features": Case(Discrete(32), 40, (0.015, 0.04), num_envs=2, num_steps=128, num_minibatches=4),
}


VARIANTS = {
    "own": HOPPER,
    "9.0": KernelVariant(True, 227 * 1024),
    "8.0": KernelVariant(True, 163 * 1024),
    "8.6": KernelVariant(True, 99 * 1024),
}
"""Hopper's own kernel, and the portable one with the shared memory of a compute capability."""


def require_variant(name: str) -> None:
    """Skips a test on a GPU that cannot run one of `VARIANTS`."""
    variant, device = VARIANTS[name], parse_device("cuda:0")
    if not variant.is_portable and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("Hopper's own kernel needs compute capability 9.0")
    if variant.max_shared_bytes > max_shared_memory(device):
        pytest.skip(f"a block has {max_shared_memory(device):,} bytes of shared memory")


def compile_env_functions(shape: PopulationShape, constants: dict[str, int | str], cc: tuple[int, int] = (9, 0)) -> bytes:
    """Returns the environment's functions as LTO-IR for a compute capability."""
    from cuda.core import Program, ProgramOptions

    component = "float" if shape.gaussian else "int"
    macros = constants | {"D": shape.features, "K": shape.action_size, "GAUSSIAN": int(shape.gaussian)}
    macros["NAN"] = "__int_as_float(0x7FC00000)"
    lines = [f"#define {name} {value}" for name, value in macros.items()]
    lines += ["typedef unsigned u32; typedef unsigned long long u64; typedef long long i64;", f"typedef {component} Component;"]
    options = ProgramOptions(arch="sm_{}{}".format(*cc), link_time_optimization=True, relocatable_device_code=True)
    return bytes(Program("\n".join([*lines, ENV_FUNCTIONS]), "c++", options).compile("ltoir").code)


def gpu_launcher(kernel: CudaSource, device: str) -> Callable[..., None]:
    """Returns the function that `emulate` returns, whose launches run on a GPU with copies of the tensors."""
    launch_on_gpu = make_tensor_launcher(kernel, parse_device(device))

    def launch(grid: tuple[int, ...], **members: Any) -> None:
        tensors = {x.data_ptr(): x for x in members.values() if isinstance(x, Tensor)}
        copies = {address: x.to(device) for address, x in tensors.items()}
        launch_on_gpu(*grid, **{k: copies[x.data_ptr()] if isinstance(x, Tensor) else x for k, x in members.items()})
        for address, x in tensors.items():
            x.copy_(copies[address])

    return launch


class Emulation:
    """A population of two agents, or of one of them, that starts from random weights.

    Args:
        case: the training.
        folder: where the kernel is compiled for a CPU.
        device: the GPU on which it runs instead, or "".
        reverse: as of `emulate`.
        variant: of the kernel.
    """

    agents: tuple[int, ...] = (0, 1)

    def __init__(
        self, case: Case, folder: Path, device: str = "", reverse: bool = False, variant: KernelVariant = HOPPER
    ) -> None:
        self.case, self.shape = case, case.shape._replace(variant=variant)
        constants: dict[str, int | str] = {
            "NUM_FLOAT_FIELDS": case.features,
            "NUM_INT_FIELDS": 0,
            "LIMIT": f"{LIMIT}u",
            "PERIOD": PERIOD,
        }
        functions = LinkedFunctions((), ("state", "start", "final_obs"), constants)
        if device:
            code = compile_env_functions(self.shape, constants, torch.cuda.get_device_capability(device))
            functions = functions._replace(code=(code,))
            self.launch = gpu_launcher(population_kernel(self.shape, functions), device)
        else:
            self.launch = emulate(population_kernel(self.shape, functions), folder, functions=ENV_FUNCTIONS, reverse=reverse)
        self.reset()

    def reset(self) -> None:
        """Starts again."""
        case, num_agents, rows = self.case, len(self.agents), len(self.agents) * self.case.num_envs
        torch.manual_seed(5)
        networks = [case.network() for _ in range(2)]
        self.layout = KernelParameterLayout(networks[0], self.shape)
        self.parameters, self.exp_avg, self.exp_avg_sq = torch.zeros(3, num_agents, self.layout.num_floats)
        self.adam_step = torch.zeros(num_agents)
        for name, view in self.layout.views(self.parameters).items():
            for k, agent in enumerate(self.agents):
                p = dict(networks[agent].named_parameters())[name].detach()
                view[k] = p + 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name) + agent))
        column, row = torch.arange(case.features), torch.arange(case.num_envs).unsqueeze(1)
        first = torch.cat([0.1 * (agent - 0.3 * row + 0.1 * (column % 8)) for agent in self.agents])
        self.env = {"state": first, "start": torch.zeros(rows, dtype=torch.int32), "final_obs": torch.zeros_like(first)}
        self.obs = torch.zeros_like(first)
        self.statistics = EpisodeStatistics.initial(rows, "cpu")._asdict()
        self.fault, self.stopped_at = torch.zeros(num_agents, dtype=torch.int64), torch.full((num_agents,), -1)
        settings = SETTINGS | {"learning_rate": case.learning_rate}
        self.settings = {name: torch.tensor([x[k] for k in self.agents], dtype=torch.float64) for name, x in settings.items()}
        self.iteration = 0

    def run(self, iterations: int = 1, num_updates: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (metrics, records, gradient)."""
        case, shape, num_agents = self.case, self.shape, len(self.agents)
        metrics = torch.full((iterations, len(METRICS), num_agents), math.nan)
        records = torch.full((num_agents, shape.num_samples, shape.record_size), math.nan)
        gradient, samples = torch.zeros_like(self.parameters), torch.zeros(num_agents, shape.sample_bytes // 4)
        seeds = {"action_seeds": ACTION_SEEDS, "order_seeds": ORDER_SEEDS}
        bounds = {}
        if isinstance(case.space, Box):
            bounds = {"low": torch.from_numpy(case.space.low), "high": torch.from_numpy(case.space.high)}
        self.launch(
            (num_agents,), parameters=self.parameters, exp_avg=self.exp_avg, exp_avg_sq=self.exp_avg_sq,
            adam_step=self.adam_step, **self.settings, **self.statistics, **bounds,
            **{f"env_{name}": x for name, x in self.env.items()},
            **{name: torch.tensor([x[k] for k in self.agents]) for name, x in seeds.items()},
            clock=torch.tensor(self.iteration * case.num_steps, dtype=torch.int32), obs=self.obs,
            final_obs=self.env["final_obs"], metrics=metrics, fault=self.fault, stopped_at=self.stopped_at, gradient=gradient,
            records=records, samples=samples, first_iteration=self.iteration, num_iterations=iterations, anneal_iterations=10,
            num_updates=shape.num_updates if num_updates is None else num_updates, num_agents=num_agents, max_grad_norm=0.5,
        )  # fmt: skip
        self.iteration += iterations
        return metrics, records, gradient

    def views(self, flat: Tensor, k: int) -> dict[str, Tensor]:
        """Returns the tensors of agent k by name, (1, ...) in float64."""
        return {name: view[k : k + 1].double() for name, view in self.layout.views(flat).items()}

    def outputs(self, views: dict[str, Tensor], part: str, obs: Tensor) -> Tensor:
        """Returns the outputs of the "actor" or the "critic" with these parameters."""
        return evaluate_layers(layers_of(views, part), obs.unsqueeze(0), self.case.activation)[0]

    def policy(self, views: dict[str, Tensor], obs: Tensor) -> Any:
        """Returns the distribution of the actions, (1, rows)."""
        outputs = self.outputs(views, "actor", obs).unsqueeze(0)
        if isinstance(self.case.space, Discrete):
            return torch.distributions.Categorical(logits=outputs)
        std = views["log_std"].exp().expand_as(outputs)
        return torch.distributions.Independent(torch.distributions.Normal(outputs, std), 1)

    def fields(self, records: Tensor) -> tuple[Tensor, ...]:
        """Returns (log-probability, features, action, advantage, target) of records of an agent, in float64."""
        d, k, x = self.shape.features, self.shape.action_size, records.double()
        action = x[:, d + 1 : d + 1 + k] if self.shape.gaussian else x[:, d + 1].long()
        return x[:, 0], x[:, 1 : d + 1], action, x[:, d + k + 1], x[:, d + k + 2]

    def state_of(self, agent: int) -> list[Tensor]:
        """Returns copies of all that the next iteration of an agent depends on."""
        e, k = self.case.num_envs, self.agents.index(agent)
        rows = [x[k * e : (k + 1) * e] for x in (*self.env.values(), *self.statistics.values())]
        learned = self.parameters, self.exp_avg, self.exp_avg_sq, self.adam_step, self.fault
        return [x.clone() for x in (*(x[k] for x in learned), *rows)]


def steps_of_env(case: Case, first: Tensor, action: Tensor, first_clock: int = 0) -> tuple[Tensor, ...]:
    """Runs the environments of an agent in float64, whose episodes begin at the clock `first_clock`.

    Returns:
        Features, rewards, features after the step and before a reset, ends by termination, ends by truncation alone, each
        (T, E, ...), and the features after the last step.
    """
    obs, start, out = first.double(), torch.full((case.num_envs,), float(first_clock)), []
    pushes = action.double().view(case.num_steps, case.num_envs, -1)
    pushes = pushes.clamp(-1.0, 1.0) if isinstance(case.space, Box) else pushes % 3
    column = torch.arange(case.features)
    size = column % 8 + 1
    for t in range(case.num_steps):
        clock = first_clock + t + 1
        after = 0.9 * obs + 0.4 * (pushes[t][:, column % pushes.shape[2]] - 0.4) + 0.01 * size * (clock % 5)
        terminated, truncated = torch.full(start.shape, clock % PERIOD == 0), clock - start >= LIMIT
        ended = terminated | truncated
        out.append((obs, 3.0 - after[:, 0] - 2.0 * pushes[t][:, 0], after, terminated, truncated & ~terminated))
        start = torch.where(ended, float(clock), start)
        obs = torch.where(ended.unsqueeze(1), 0.05 * size * (clock % 3 - 1.0), after)
    return *(torch.stack(x) for x in zip(*out, strict=True)), obs
