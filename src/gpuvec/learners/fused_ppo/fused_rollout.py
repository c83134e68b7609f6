"""Rollouts of a policy in one kernel, and V of all that was seen in another."""

from __future__ import annotations

import gymnasium as gym
import torch
from torch import Tensor

from gpuvec.engine.backends.cuda.linked_functions import LinkedFunctions, link_env_functions
from gpuvec.engine.backends.cuda.nvrtc import CudaSource
from gpuvec.engine.backends.device import parse_device as named_device
from gpuvec.engine.layout.arguments import batch_members
from gpuvec.learners.buffers.env_rollout import EnvRollout
from gpuvec.learners.fused_ppo.fused_launch import launcher
from gpuvec.learners.fused_ppo.network_shape import FOLDER, Shape
from gpuvec.learners.sampling.action_kernels import DRAWS, FIRST_DRAW

WARPS = 4
ROWS = (8, 16, 32)  # environments that a warp may take
SCHEDULERS = 4  # of a multiprocessor

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


def kernel(shape: Shape, game: LinkedFunctions, rows: int, starts: tuple[int, ...], stream: int = 0) -> CudaSource:
    """Of a rollout: a warp has `rows` environments, whose actions count from `starts`."""
    members = ROLLOUT | {f"game_{name}": "u64" for name in game.members}
    room = shape.weights(False) + WARPS * rows * (2 * shape.pitch + 4 * (shape.numbers + 1))
    constants = shape.constants | game.constants | {"WARPS": WARPS, "SPACE": room}
    constants |= {"TILES": -(-rows // 16), "EIGHT": int(rows == 8)}
    constants |= {"GAME": ", ".join(f"b.game_{name}" for name in game.members), "FIRST_DRAW": f"{FIRST_DRAW + stream * DRAWS}u"}
    constants["STARTS"] = "{" + ", ".join(map(str, starts)) + "}"
    file, given = FOLDER / "rollout.cu", (tuple(members.items()), tuple(constants.items()))
    return CudaSource(file, "rollout", *given, 32 * WARPS, room, game.code)


def value_kernel(shape: Shape, tiles: int) -> CudaSource:
    """Of V."""
    constants = shape.constants | {"WARPS": WARPS, "TILES": tiles}
    return CudaSource(
        FOLDER / "value.cu", "value", tuple(VALUE.items()), tuple(constants.items()), 32 * WARPS, shape.weights(True)
    )


def rows_of_a_warp(num_envs: int, multiprocessors: int) -> int:
    """How many environments it takes: as few as leave no scheduler more than two warps, as a step is a chain of results that
    each wait for the one before; where there are more anyway, as many as it can, as then weights are read less often.
    """
    room = 2 * SCHEDULERS * multiprocessors
    return next((rows for rows in ROWS if num_envs <= rows * room), ROWS[-1])


class Play:
    """Rollouts of `env`, and V of what was seen.

    Args:
        shape: of the network.
        parameters: of the network, as `Update` has them.
        rollout: whose storage is written.
        iteration: scalar int64 on the device: rollouts before this one, of which the draws hang.
        seed, stream: of the draws, as of `sampling.Sampler`.
    """

    def __init__(
        self, shape: Shape, parameters: Tensor, rollout: EnvRollout, iteration: Tensor, seed: int, stream: int
    ) -> None:
        env = rollout.env.unwrapped
        self._parameters, self._rollout, self._iteration, self._seed = parameters, rollout, iteration, seed
        self._rows, self._device = env.num_envs, named_device(env.device)
        simulation = env.simulation  # the learner plays in its place
        capability = torch.cuda.get_device_capability(env.device)
        with self._device.current():
            game = link_env_functions(simulation.env, simulation.options._replace(validate=False), capability)
        places = {"final_obs": rollout.final_obs, "final_mask": rollout.ended}
        returned = (places[k].data_ptr() if k in places else 0 for k in simulation.layout.returned)
        outputs = b"".join(place.to_bytes(8, "little") for place in returned)
        found = batch_members(simulation.buffer_addresses, outputs, self._rows)
        self._game = {f"game_{name}": place for name, place in zip(game.members, found, strict=True)}
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
        rows = rows_of_a_warp(self._rows, multiprocessors)
        self._blocks = -(-self._rows // (WARPS * rows))
        self._launch = launcher(kernel(shape, game, rows, starts, stream), self._device)
        self._value = launcher(value_kernel(shape, 2), self._device)
        self._value_blocks = 4 * multiprocessors

    def __call__(self, action: Tensor, log_prob: Tensor, value: Tensor, last_value: Tensor) -> None:
        """A rollout into these tensors of the learner's storage, and into the rollout's own."""
        r = self._rollout
        size = {"steps": r.steps, "rows": self._rows}
        self._launch(
            self._blocks, parameters=self._parameters, iteration=self._iteration, clock=self._clock.data.ptr, began=r.began,
            obs=r.obs, action=action, log_prob=log_prob, reward=r.reward, terminated=r.terminated, truncated=r.truncated,
            seed=self._seed, **size, **self._bounds, **self._game,
        )  # fmt: skip
        self._value(
            self._value_blocks, early=True, parameters=self._parameters, obs=r.obs, final_obs=r.final_obs, ended=r.ended,
            terminated=r.terminated, value=value, last_value=last_value, clock=self._clock.data.ptr, clocks=self._clock.size,
            **size,
        )  # fmt: skip
