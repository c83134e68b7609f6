"""Runs every kernel of an environment or of the learners, or a faulty kernel; `sanitize.py` runs it under compute-sanitizer.

python tests/gpu/sanitizer_target.py env CartPole-v1
python tests/gpu/sanitizer_target.py game split_tiled-nearest
python tests/gpu/sanitizer_target.py declared tests.support.signal_env:ENV
python tests/gpu/sanitizer_target.py rows draws
python tests/gpu/sanitizer_target.py fused CartPole-v1
python tests/gpu/sanitizer_target.py captured Breakout-v0
python tests/gpu/sanitizer_target.py population CartPole-v1
python tests/gpu/sanitizer_target.py planted memcheck
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import gymnasium
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.gpu.sanitizer_learners import (
    MISSING_BARRIERS,
    run_learner_kernels,
    train_captured,
    train_population_kernel,
    train_visibly,
)
from tests.support.bundled_envs import SMALL_PARAMS, THREAD_PER_ENV
from tests.support.vector_envs import make_envs

from gpuvec.engine.layout.schema import SingleAgentSchema
from gpuvec.errors import ActionError

# One faulty kernel for each tool, which the tool must report.
FAULTY_KERNELS = {
    "memcheck": "out[n + threadIdx.x] = in[threadIdx.x];",
    "racecheck": "__shared__ int tile[64]; tile[threadIdx.x] = in[threadIdx.x]; out[threadIdx.x] = tile[63 - threadIdx.x];",
    "initcheck": "out[threadIdx.x] = uninitialized[threadIdx.x];",
    "synccheck": """
        __shared__ int tile[64];
        if (threadIdx.x < n / 4) {
            tile[threadIdx.x] = in[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[n / 4 - 1 - threadIdx.x];
        } else {
            tile[threadIdx.x] = uninitialized[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[threadIdx.x] + 1;
        }""",
}


def run_faulty_kernel(name: str) -> None:
    """Launches the kernel of a population without a barrier, or a faulty kernel: 64 threads, and three arrays of 64 int32."""
    if name in MISSING_BARRIERS:
        train_visibly(name)
        print("planted", name)
        return
    signature = 'extern "C" __global__ void planted(const int* in, const int* uninitialized, int* out, int n)'
    source = f"{signature} {{ {FAULTY_KERNELS[name]} }}"
    kernel = cupy.RawKernel(source, "planted")
    zeros, uninitialized, out = cupy.zeros(64, "int32"), cupy.empty(64, "int32"), cupy.zeros(64, "int32")
    try:
        kernel((1,), (64,), (zeros, uninitialized, out, np.int32(64)))
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:  # The fault may make the launch fail.
        print(error)
    print("planted", name)


class MultiAgentCase(NamedTuple):
    """A configuration of a multi-agent environment, whose episodes have at most four steps."""

    name: str
    num_envs: int
    params: dict[str, Any]


GRID, CONTINUOUS = "TagGridWorld-v0", "TagContinuous-v0"
PARTIAL = {"use_full_observation": False}
NEAREST = {**PARTIAL, "tagging_distance": 0.05}

# A name begins with the `observation_layout`, which the sizes determine. Agents observe all others, the nearest, or the one
# with the smallest value. In most cases the last block has fewer envs than the others.
MULTI_AGENT_CASES = {
    "direct-all": MultiAgentCase(GRID, 1001, {"num_taggers": 4}),
    "direct-nearest": MultiAgentCase(CONTINUOUS, 1001, {**NEAREST, "num_runners": 4, "num_other_agents_observed": 2}),
    "tiled-all": MultiAgentCase(CONTINUOUS, 8001, {"num_runners": 4, "tagging_distance": 0.05}),
    "tiled-argmin": MultiAgentCase(GRID, 500, {**PARTIAL, "num_taggers": 19}),
    "tiled-argmin-of-1000": MultiAgentCase(GRID, 331, {**PARTIAL, "num_taggers": 999, "grid_length": 100}),
    "split_tiled-all": MultiAgentCase(CONTINUOUS, 301, {"num_runners": 19, "tagging_distance": 0.05}),
    "split_tiled-all-of-1025": MultiAgentCase(GRID, 3, {"num_taggers": 1024, "grid_length": 100}),  # a tile of one row
    "split_tiled-nearest": MultiAgentCase(
        CONTINUOUS, 51, {**NEAREST, "num_taggers": 10, "num_runners": 100, "num_other_agents_observed": 10}
    ),
    "split_tiled-nearest-of-1100": MultiAgentCase(
        CONTINUOUS, 3, {**NEAREST, "num_runners": 1099, "num_other_agents_observed": 3}
    ),  # state not staged in shared memory
    "split_tiled-argmin-of-1025": MultiAgentCase(GRID, 9, {**PARTIAL, "num_taggers": 1024, "grid_length": 100}),
    "split_direct-all-of-1025": MultiAgentCase(CONTINUOUS, 2, {"num_runners": 1024}),
}


def make_env(name: str, num_envs: int, mode: str, **options: Any) -> Any:
    """A vector environment on the GPU."""
    import gpuvec  # noqa: F401  # registers the environments

    options = {"device": "cuda", "output": "cupy", "autoreset_mode": mode, **options}
    return gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)


def observation_layout(env: Any) -> str:
    """How the kernels of a multi-agent environment write observations.

    Returns:
        `direct` or `tiled` if the step kernel writes them, to global memory or by a tile in shared memory; `split_direct` or
        `split_tiled` if a separate kernel writes them.
    """
    from gpuvec.engine.backends.cuda.launch_config import make_launch_config

    config = make_launch_config(env.simulation.schema, env.num_envs)
    assert config is not None
    writer = "split_" if config.split else ""
    return writer + ("tiled" if config.tile_rows else "direct")


def sample_actions(space: Any, num_envs: int, rng: np.random.Generator, dtype: str) -> Any:
    """Random actions on the device for the space of one environment, by role if it is a Dict; discrete ones have a `dtype`."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {role: sample_actions(each, num_envs, rng, dtype) for role, each in space.items()}
    shape = (num_envs, *space.shape)
    if hasattr(space, "low"):
        return cupy.asarray(rng.uniform(space.low, space.high, shape).astype("float32"))
    return cupy.asarray(rng.integers(0, space.nvec if hasattr(space, "nvec") else space.n, shape, dtype))


def arrays_in(outputs: Any) -> Iterator[Any]:
    """Yields the arrays on the device in nested dicts and tuples."""
    if isinstance(outputs, cupy.ndarray):
        yield outputs
    elif isinstance(outputs, dict | tuple):
        for each in outputs.values() if isinstance(outputs, dict) else outputs:
            yield from arrays_in(each)


def run_episodes(env: Any, steps: int, dtypes: tuple[str, ...] = ("int32",)) -> None:
    """Steps with episode ends and all kinds of resets; at least one episode per env must end."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    env.reset(seed=list(range(env.num_envs)))
    num_ended = 0
    for t in range(steps):
        if t == 2:  # Episodes then end in different steps.
            env.reset(options={"reset_mask": cupy.asarray(np.arange(env.num_envs) % 2 == 0)})
        outputs = env.step(sample_actions(env.single_action_space, env.num_envs, rng, dtypes[t % len(dtypes)]))
        assert all(np.isfinite(array.get()).all() for array in arrays_in(outputs))
        _, _, terminated, truncated, _ = outputs
        episode_end = terminated.get() | truncated.get()
        num_ended += int(episode_end.sum())
        if env.autoreset_mode.value == "Disabled" and episode_end.any():
            env.reset(options={"reset_mask": cupy.asarray(episode_end)})
    env.check()
    env.close()
    assert num_ended >= env.num_envs, f"only {num_ended} episodes ended"


def run_env(name: str) -> None:
    """Runs all kernels of an environment: steps with resets, in less than one block and in several, rollouts, odd actions."""
    for mode in ("SameStep", "NextStep", "Disabled"):
        for num_envs, validate in ((64, False), (300, True)):
            per_env = ("gravity",) if name == "CartPole-v1" and validate else ()
            params = SMALL_PARAMS.get(name, {}) if validate else {}
            env = make_env(name, num_envs, mode, max_episode_steps=7, validate=validate, per_env=per_env, **params)
            run_episodes(env, 20, ("int64", "int32"))
            print("checked", name, mode, num_envs, "validate" if validate else "", flush=True)
    run_extreme_actions(name)
    if name in THREAD_PER_ENV:
        run_rollouts(name)


def run_rollouts(name: str) -> None:
    """Runs rollouts of few and of many envs, which have different kernels; the last block is not full."""
    for num_envs, mode in ((300, "SameStep"), (300, "NextStep"), (34_001, "SameStep")):
        env = make_env(name, num_envs, mode, max_episode_steps=5)
        env.reset(seed=0)
        for _ in range(2):
            out = env.rollout(7)
            assert np.isfinite(out.obs.get()).all()
        assert (out.terminated | out.truncated).any()
        env.close()
        print("checked", name, num_envs, mode, flush=True)


def run_extreme_actions(name: str) -> None:
    """Steps with actions far out of range, of every dtype, which must not cause an access out of bounds."""
    discrete = {"int32": (-1, 10**9, -(2**31)), "int64": (-1, 10**9, 2**32, -(2**63), 2**63 - 1), "uint8": (255,)}
    box = {"float32": (np.nan, np.inf, -np.inf, 1e30), "float64": (np.nan, 1e300, -np.inf)}
    variants = (
        [{}] if not name.startswith("Tag") else [{}, PARTIAL] if name == GRID else [{}, NEAREST, {"continuous_actions": True}]
    )
    for params in variants:
        for mode, validate in (("SameStep", False), ("NextStep", True)):
            env = make_env(name, 300, mode, max_episode_steps=4, validate=validate, **params)
            for dtype, values in (box if hasattr(env.single_action_space, "low") else discrete).items():
                for value in values:
                    env.reset(seed=0)
                    by_role = env.action_space.items() if isinstance(env.action_space, gymnasium.spaces.Dict) else ()
                    roles = {role: cupy.full(space.shape, value, dtype) for role, space in by_role}
                    for _ in range(6):
                        env.step(roles or cupy.full(env.action_space.shape, value, dtype))
                    if isinstance(env.simulation.schema, SingleAgentSchema):
                        env.rollout(6, policy=cupy.full((6, *env.action_space.shape), value, dtype))
                    with contextlib.suppress(ActionError):
                        env.check()
            env.close()
    print("checked", name, "with extreme actions", flush=True)


def run_multi_agent_case(case: str) -> None:
    """Steps a multi-agent environment; each autoreset mode has other options."""
    name, num_envs, params = MULTI_AGENT_CASES[case]
    for mode, options in (("SameStep", {"reward": "sum"}), ("NextStep", {}), ("Disabled", {"validate": True})):
        env = make_env(name, num_envs, mode, max_episode_steps=4, **options, **params)
        assert observation_layout(env) == case.partition("-")[0]
        if mode != "Disabled":
            env.set_reset_pool({k: np.random.default_rng(0).integers(0, 10, (3, env.num_agents)) for k in ("x", "y")})
        run_episodes(env, 12)
        print("checked", case, mode, options, flush=True)


def run_declared_env(name: str) -> None:
    """Steps an environment of the tests, which has what no bundled one combines, in less than one block and in several."""
    for mode in ("SameStep", "NextStep", "Disabled"):
        for num_envs in (3, 1001):
            run_episodes(make_envs(name, num_envs, "cuda", autoreset_mode=mode, max_episode_steps=4), 12)
            print("checked", name, mode, num_envs, flush=True)


def train_fused(name: str) -> None:
    """Trains PPO with the fused kernels: rollouts, estimates and updates, also with agents that become inactive."""
    from gpuvec.learners.ppo import PPOArgs
    from gpuvec.learners.training import make_learner

    name, _, variant = name.partition(" ")
    roles, sizes = variant == "(roles)", {"hidden": (256, 256)} if variant == "(256 units)" else {}
    params: dict[str, Any] = {"num_runners": 4, "tagging_distance": 0.05} if name == CONTINUOUS else {}
    if roles:  # one policy each, with more features, and heads of 21 outputs each
        params |= {"use_full_observation": False, "num_other_agents_observed": 3}
    params["max_episode_steps"] = 7
    args: Any = PPOArgs(
        f"gpuvec/{name}",
        params,
        num_envs=70,
        num_steps=20,
        update_epochs=2,
        num_minibatches=2,
        fused=True,
        device="cuda:0",
        **sizes,
    )
    env = make_env(name, 70, "SameStep", output="torch", buffers=1, **params)
    args = args.resolved("cuda:0")
    learner = make_learner(dict.fromkeys(env.roles, args) if roles else args, env)
    for _ in range(2):
        learner.iterate()
        metrics = learner.read()
        for role in learner.policies if roles else [""]:
            assert metrics[f"{role}/episodes".strip("/")] > 0
            assert np.isfinite(metrics[f"{role}/grad_norm".strip("/")])
        print("checked", name, learner.iteration, flush=True)
    env.close()


def main() -> None:
    """Runs the kind of kernels that the command line names."""
    kind, name = sys.argv[1:]
    if kind != "captured":  # whose graphs have memory of the caching allocator
        # Every array is a separate allocation, so that accesses beyond its ends are detected; torch is not loaded yet.
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        cupy.cuda.set_allocator(None)
    jobs = {
        "planted": run_faulty_kernel,
        "env": run_env,
        "game": run_multi_agent_case,
        "declared": run_declared_env,
        "rows": run_learner_kernels,
        "fused": train_fused,
        "captured": train_captured,
        "population": train_population_kernel,
        "visible": train_visibly,
    }
    jobs[kind](name)
    print("finished", name, flush=True)


if __name__ == "__main__":
    main()
