"""Rollouts of a policy in one kernel, and the values of all observations in another."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions, link_env_functions
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device
from gpuvec.engine.layout.arguments import batch_members
from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.fused_ppo.fused_launch import make_tensor_launcher
from gpuvec.learners.fused_ppo.network_shape import FOLDER, NetworkShape
from gpuvec.learners.sampling.action_kernels import DRAWS_PER_STREAM, FIRST_DRAW

WARPS = 4
ROWS = (8, 16, 32)  # environments per warp
SCHEDULERS = 4  # warp schedulers of a multiprocessor

ROLLOUT = {
    "parameters": "const float*", "iteration": "const long long*", "clock": "const unsigned*", "began": "bool*",
    "obs": "float*", "action": "void*", "log_prob": "float*", "reward": "float*", "terminated": "bool*", "truncated": "bool*",
    "low": "const float*", "high": "const float*", "steps": "i64", "rows": "i64", "seed": "u64",
}  # fmt: skip
VALUE = {
    "parameters": "const float*", "obs": "const float*", "final_obs": "const float*", "ended": "const bool*",
    "terminated": "const bool*", "value": "float*", "last_value": "float*", "clock": "unsigned*",
    "clocks": "i64", "steps": "i64", "rows": "i64",
}  # fmt: skip


def rollout_kernel(
    shape: NetworkShape, game: LinkedFunctions, rows: int, starts: tuple[int, ...], stream: int = 0
) -> CudaSource:
    """Returns the kernel of a rollout.

    Args:
        shape: of the policy.
        game: the environment's functions to link with.
        rows: environments per warp, one of `ROWS`.
        starts: the smallest value of each component of a discrete action.
        stream: number of the random stream from which actions are drawn.
    """
    members = ROLLOUT | {f"game_{name}": "u64" for name in game.members}
    shared_bytes = shape.weights(False) + WARPS * rows * (2 * shape.pitch + 4 * (shape.padded_outputs + 1))
    constants = shape.constants | game.constants | {"WARPS": WARPS, "SPACE": shared_bytes}
    constants |= {"TILES": -(-rows // 16), "EIGHT": int(rows == 8)}
    constants |= {
        "GAME": ", ".join(f"b.game_{name}" for name in game.members),
        "FIRST_DRAW": f"{FIRST_DRAW + stream * DRAWS_PER_STREAM}u",
    }
    constants["STARTS"] = "{" + ", ".join(map(str, starts)) + "}"
    names = tuple(members.items()), tuple(constants.items())
    return CudaSource(FOLDER / "rollout.cu", "rollout", *names, 32 * WARPS, shared_bytes, game.code)


def value_kernel(shape: NetworkShape, tiles: int) -> CudaSource:
    """Returns the kernel that computes the value function of a network `shape` for `tiles` of 16 rows per warp."""
    constants = shape.constants | {"WARPS": WARPS, "TILES": tiles}
    return CudaSource(
        FOLDER / "value.cu", "value", tuple(VALUE.items()), tuple(constants.items()), 32 * WARPS, shape.weights(True)
    )


def rows_per_warp(num_envs: int, multiprocessors: int) -> int:
    """Returns the number of environments per warp: few if the GPU is not full, as latency then determines the time of a step.

    With more than two warps per scheduler, as many as possible, so that weights are read less often.

    Args:
        num_envs: E.
        multiprocessors: of the GPU.
    """
    warps = 2 * SCHEDULERS * multiprocessors
    return next((rows for rows in ROWS if num_envs <= rows * warps), ROWS[-1])


class FusedRollout:
    """Plays rollouts with a policy and computes the values of their observations.

    Args:
        shape: of the network.
        parameters: (N,) float32, the parameters of `FusedUpdate`.
        rollout: the environment and the storage that is written.
        iteration: () int64 on the device, the number of rollouts before this one, on which the draws depend.
        seed: of the draws, as in `sampling.Sampler`.
        stream: number of their random stream, as in `sampling.Sampler`.
    """

    def __init__(
        self, shape: NetworkShape, parameters: Tensor, rollout: EnvRollout, iteration: Tensor, seed: int, stream: int
    ) -> None:
        env = rollout.env.unwrapped
        self._parameters, self._rollout, self._iteration, self._seed = parameters, rollout, iteration, seed
        self._rows, self._device = env.num_envs, parse_device(env.device)
        simulation = env.simulation
        capability = torch.cuda.get_device_capability(env.device)
        with self._device.current():
            game = link_env_functions(simulation.env, simulation.options._replace(validate=False), capability)
        final_arrays = {"final_obs": rollout.final_obs, "final_mask": rollout.ended}
        addresses = (final_arrays[k].data_ptr() if k in final_arrays else 0 for k in simulation.layout.outputs)
        outputs = b"".join(address.to_bytes(8, "little") for address in addresses)
        batch = batch_members(simulation.buffer_addresses, outputs, self._rows)
        self._game = {f"game_{name}": value for name, value in zip(game.members, batch, strict=True)}
        self._clock = simulation.buffers["clock"]
        space = env.single_action_space
        self._bounds = {}
        starts: tuple[int, ...] = (0,) * shape.actions
        if isinstance(space, gym.spaces.Box):
            low, high = (torch.as_tensor(x, dtype=torch.float32, device=env.device) for x in (space.low, space.high))
            self._bounds = {"low": low, "high": high}
        elif isinstance(space, gym.spaces.Discrete):
            starts = (int(space.start),)
        else:
            starts = tuple(map(int, space.start))
        multiprocessors = torch.cuda.get_device_properties(env.device).multi_processor_count
        rows = rows_per_warp(self._rows, multiprocessors)
        self._blocks = -(-self._rows // (WARPS * rows))
        self._launch = make_tensor_launcher(rollout_kernel(shape, game, rows, starts, stream), self._device)
        self._value = make_tensor_launcher(value_kernel(shape, 2), self._device)
        self._value_blocks = 4 * multiprocessors

    def __call__(self, action: Tensor, log_prob: Tensor, value: Tensor, last_value: Tensor) -> None:
        """Plays a rollout.

        Args:
            action: (T, R) or (T, R, K), receives the actions.
            log_prob: (T, R) float32, receives their log-probabilities.
            value: (T + 1, R) float32, receives the values of the observations.
            last_value: (T, R) float32, receives the values of the last observations of truncated episodes.
        """
        r = self._rollout
        size = {"steps": r.num_steps, "rows": self._rows}
        self._launch(
            self._blocks, parameters=self._parameters, iteration=self._iteration, clock=self._clock.data.ptr,
            began=r.episode_start, obs=r.obs, action=action, log_prob=log_prob, reward=r.reward, terminated=r.terminated,
            truncated=r.truncated,
            seed=self._seed, **size, **self._bounds, **self._game,
        )  # fmt: skip
        self._value(
            self._value_blocks, dependent_launch=True, parameters=self._parameters, obs=r.obs, final_obs=r.final_obs,
            ended=r.ended, terminated=r.terminated, value=value, last_value=last_value, clock=self._clock.data.ptr,
            clocks=self._clock.size, **size,
        )  # fmt: skip
