"""Runs every kernel of an environment, or the learners' own, or one that is wrong on purpose: `sanitize.py` has them checked.

python tests/gpu/sanitizer_target.py env CartPole-v1
python tests/gpu/sanitizer_target.py game tiles-nearest
python tests/gpu/sanitizer_target.py rollout CartPole-v1
python tests/gpu/sanitizer_target.py extreme TagContinuous-v0
python tests/gpu/sanitizer_target.py rows draws
python tests/gpu/sanitizer_target.py fused CartPole-v1
python tests/gpu/sanitizer_target.py planted memcheck
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NamedTuple

import cupy
import numpy as np

from gpuvec.errors import ActionError

# One bug for each tool: it must be reported, or the tool did not look.
PLANTED = {
    "memcheck": "out[n + threadIdx.x] = in[threadIdx.x];",
    "racecheck": "__shared__ int tile[64]; tile[threadIdx.x] = in[threadIdx.x]; out[threadIdx.x] = tile[63 - threadIdx.x];",
    "initcheck": "out[threadIdx.x] = never[threadIdx.x];",
    "synccheck": """
        __shared__ int tile[64];
        if (threadIdx.x < n / 4) {
            tile[threadIdx.x] = in[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[n / 4 - 1 - threadIdx.x];
        } else {
            tile[threadIdx.x] = never[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[threadIdx.x] + 1;
        }""",
}


def planted(tool: str) -> None:
    """Launches the bug for `tool`, 64 threads over three arrays of 64 int32."""
    source = f'extern "C" __global__ void planted(const int* in, const int* never, int* out, int n) {{ {PLANTED[tool]} }}'
    kernel = cupy.RawKernel(source, "planted")
    given, never, out = cupy.zeros(64, "int32"), cupy.empty(64, "int32"), cupy.zeros(64, "int32")
    try:
        kernel((1,), (64,), (given, never, out, np.int32(64)))
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:  # the launch may end with the bug
        print(error)
    print("planted", tool)


class Game(NamedTuple):
    """A game of many agents, with episodes of at most four steps."""

    name: str
    num_envs: int
    params: dict[str, Any]


GRID, CONTINUOUS = "TagGridWorld-v0", "TagContinuous-v0"
PARTIAL = {"use_full_observation": False}
NEAREST = {**PARTIAL, "tagging_distance": 0.05}

# By how observations leave, `layout`, then by what is seen: all, the nearest, or who is least in an order. The sizes choose
# the layout. The last block of most has fewer envs than the others.
GAMES = {
    "straight-all": Game(GRID, 1001, {"num_taggers": 4}),
    "straight-nearest": Game(CONTINUOUS, 1001, {**NEAREST, "num_runners": 4, "num_other_agents_observed": 2}),
    "boxed-all": Game(CONTINUOUS, 8001, {"num_runners": 4, "tagging_distance": 0.05}),
    "boxed-least": Game(GRID, 500, {**PARTIAL, "num_taggers": 19}),
    "boxed-least-of-1000": Game(GRID, 331, {**PARTIAL, "num_taggers": 999, "grid_length": 100}),
    "tiles-all": Game(CONTINUOUS, 301, {"num_runners": 19, "tagging_distance": 0.05}),
    "tiles-all-of-1025": Game(GRID, 3, {"num_taggers": 1024, "grid_length": 100}),  # a row each
    "tiles-nearest": Game(CONTINUOUS, 51, {**NEAREST, "num_taggers": 10, "num_runners": 100, "num_other_agents_observed": 10}),
    "tiles-nearest-of-1100": Game(CONTINUOUS, 3, {**NEAREST, "num_runners": 1099, "num_other_agents_observed": 3}),  # unstaged
    "tiles-least-of-1025": Game(GRID, 9, {**PARTIAL, "num_taggers": 1024, "grid_length": 100}),
    "features-all-of-1025": Game(CONTINUOUS, 2, {"num_runners": 1024}),
}


def make(name: str, num_envs: int, mode: str, **options: Any) -> Any:
    """The environment on the GPU."""
    import gymnasium

    import gpuvec  # noqa: F401  # registers the environments

    options = {"device": "cuda", "output": "cupy", "autoreset_mode": mode, **options}
    return gymnasium.make_vec(f"gpuvec/{name}", num_envs=num_envs, **options)


def layout(env: Any) -> str:
    """How the observations of many agents leave: by the kernel that plays, straight or put together in shared memory, or by
    one of their own, in tiles of rows or each feature alone.
    """
    from gpuvec.engine.backends.cuda.launch_config import make_launch_config

    given = make_launch_config(env._env, env.num_envs)
    assert given is not None
    if given.split:
        return "tiles" if given.tile_rows else "features"
    return "boxed" if given.tile_rows else "straight"


def sample(env: Any, random: np.random.Generator, dtype: str) -> Any:
    """Actions; `dtype` is that of discrete ones."""
    space = env.single_action_space
    shape = (env.num_envs, *space.shape)
    if hasattr(space, "low"):
        return cupy.asarray(random.uniform(space.low, space.high, shape).astype("float32"))
    return cupy.asarray(random.integers(0, space.nvec if hasattr(space, "nvec") else space.n, shape, dtype))


def play(env: Any, steps: int, dtypes: tuple[str, ...] = ("int32",)) -> None:
    """Steps with ends and all kinds of resets. An episode has to end for each env."""
    random = np.random.default_rng(0)
    env.reset(seed=0)
    env.reset(seed=list(range(env.num_envs)))
    ends = 0
    for t in range(steps):
        if t == 2:  # so that not all end in the same step
            env.reset(options={"reset_mask": cupy.asarray(np.arange(env.num_envs) % 2 == 0)})
        obs, reward, terminated, truncated, infos = env.step(sample(env, random, dtypes[t % len(dtypes)]))
        for array in (obs, reward, *infos.values()):
            assert not isinstance(array, cupy.ndarray) or np.isfinite(array.get()).all()
        done = terminated.get() | truncated.get()
        ends += int(done.sum())
        if env.autoreset_mode.value == "Disabled" and done.any():
            env.reset(options={"reset_mask": cupy.asarray(done)})
    env.check()
    env.close()
    assert ends >= env.num_envs, f"only {ends} episodes ended"


def play_env(name: str) -> None:
    """An environment of one agent, in part of a block and in more than one."""
    for mode in ("SameStep", "NextStep", "Disabled"):
        for num_envs, validate in ((64, False), (300, True)):
            per_env = ("gravity",) if name == "CartPole-v1" and validate else ()
            env = make(name, num_envs, mode, max_episode_steps=7, validate=validate, per_env=per_env)
            play(env, 20, ("int64", "int32"))
            print("checked", name, mode, num_envs, "validate" if validate else "", flush=True)


def roll_out(name: str) -> None:
    """Rollouts of few environments and of many, for which there are kernels of their own, the last block in part."""
    for num_envs, mode in ((300, "SameStep"), (300, "NextStep"), (34_001, "SameStep")):
        env = make(name, num_envs, mode, max_episode_steps=5)
        env.reset(seed=0)
        for _ in range(2):
            out = env.rollout(7)
            assert np.isfinite(out.obs.get()).all()
        assert (out.terminated | out.truncated).any()
        env.close()
        print("checked", name, num_envs, mode, flush=True)


def play_extreme(name: str) -> None:
    """Actions far out of range, of every type that is taken: no kernel may follow them out of its memory."""
    discrete = {"int32": (-1, 10**9, -(2**31)), "int64": (-1, 10**9, 2**32, -(2**63), 2**63 - 1), "uint8": (255,)}
    box = {"float32": (np.nan, np.inf, -np.inf, 1e30), "float64": (np.nan, 1e300, -np.inf)}
    kinds = (
        [{}] if not name.startswith("Tag") else [{}, PARTIAL] if name == GRID else [{}, NEAREST, {"continuous_actions": True}]
    )
    for params in kinds:
        for mode, validate in (("SameStep", False), ("NextStep", True)):
            env = make(name, 300, mode, max_episode_steps=4, validate=validate, **params)
            for dtype, values in (box if hasattr(env.single_action_space, "low") else discrete).items():
                for value in values:
                    env.reset(seed=0)
                    actions = cupy.full(env.action_space.shape, value, dtype)
                    for _ in range(6):
                        env.step(actions)
                    if name not in (GRID, CONTINUOUS):
                        env.rollout(6, policy=cupy.full((6, *env.action_space.shape), value, dtype))
                    with contextlib.suppress(ActionError):
                        env.check()
            env.close()
    print("checked", name, "with extreme actions", flush=True)


def play_game(kind: str) -> None:
    """A game of many agents; what it can be asked for is spread over the modes."""
    name, num_envs, params = GAMES[kind]
    for mode, options in (("SameStep", {"reward": "sum"}), ("NextStep", {}), ("Disabled", {"validate": True})):
        env = make(name, num_envs, mode, max_episode_steps=4, **options, **params)
        assert layout(env) == kind.partition("-")[0]
        if mode != "Disabled":
            env.set_reset_pool({k: np.random.default_rng(0).integers(0, 10, (3, env.num_agents)) for k in ("x", "y")})
        play(env, 12)
        print("checked", kind, mode, options, flush=True)


def tensor(array: Any) -> Any:
    """A copy on the GPU."""
    import torch

    return torch.tensor(array, device="cuda:0")


def draws(rows: int, random: np.random.Generator) -> list[Any]:
    """What the sampler's kernels draw: of one and of several heads, within a mask, and each kind of normal number."""
    from gpuvec.learners.sampling.sampler import Sampler

    sampler, iteration = Sampler("cuda:0", 0), tensor(np.int64(3))
    allowed = random.random((rows, 5)) < 0.5
    allowed[:, [0, 3]] = True  # at least one of each head
    logits, mask = tensor(random.normal(size=(rows, 5)).astype("float32")), tensor(allowed)
    mean, wide = (tensor(random.normal(size=(rows, 3)).astype("float32")) for _ in range(2))
    low, high = (tensor(np.full(3, bound, "float32")) for bound in (-1.0, 1.0))
    began, noise = tensor(random.random(rows) < 0.5), tensor(np.zeros((rows, 3), "float32"))
    return [
        *sampler.categorical(logits, iteration, 0, (3, 2), mask=mask),
        *sampler.categorical(logits, iteration, 1, temperature=0.5),
        *sampler.categorical(logits, iteration, 2, greedy=True),
        *sampler.gaussian(mean, wide, iteration, 3),
        *sampler.gaussian(mean, low, iteration, 4, squashed=True),
        *sampler.gaussian(mean, low, iteration, 5, greedy=True),
        *(sampler.ornstein_uhlenbeck(mean, noise, began, low, high, iteration, step, sigma=0.2) for step in (6, 7)),
    ]


def estimates(rows: int, random: np.random.Generator) -> list[Any]:
    """Advantages and discounted returns: as many steps as a thread reads at once, fewer and more."""
    from gpuvec.learners.estimators.advantage import AdvantageEstimator
    from gpuvec.learners.estimators.reward_scaling import RewardScaler

    advantage, scale = AdvantageEstimator("cuda:0", 0.99, 0.95), RewardScaler(rows, 0.99, "cuda:0")
    found: list[Any] = []
    for steps in (1, 16, 37):
        reward, final = (tensor(random.normal(size=(steps, rows)).astype("float32")) for _ in range(2))
        value = tensor(random.normal(size=(steps + 1, rows)).astype("float32"))
        over, terminated = (random.random((steps, rows)) < chance for chance in (0.2, 0.5))
        found += advantage(reward, value, final, tensor(over & terminated), tensor(over))
        found.append(scale(reward, tensor(over)))
    return found


def play_rows(name: str) -> None:
    """The learners' kernels, for part of a block of rows and for more than one."""
    for rows in (5, 300):
        for found in {"draws": draws, "estimates": estimates}[name](rows, np.random.default_rng(rows)):
            assert np.isfinite(found.cpu().numpy()).all()
        print("checked", name, rows, flush=True)


def learn_fused(name: str) -> None:
    """PPO by the fused kernels: rollouts, estimates and updates, and the update of a game's agents, some of whom leave."""
    from gpuvec.learners.ppo import PPOArgs
    from gpuvec.learners.training import make_learner

    params: dict[str, Any] = {"num_runners": 4, "tagging_distance": 0.05} if name == CONTINUOUS else {}
    params["max_episode_steps"] = 7
    args: Any = PPOArgs(
        f"gpuvec/{name}", params, num_envs=70, num_steps=20, update_epochs=2, num_minibatches=2, fused=True, device="cuda:0"
    )
    env = make(name, 70, "SameStep", output="torch", buffers=1, **params)
    learner = make_learner(args.resolved("cuda:0"), env)
    for _ in range(2):
        learner.iterate()
        metrics = learner.read()
        assert metrics["episodes"] > 0
        assert np.isfinite(metrics["grad_norm"])
        print("checked", name, learner.iteration, flush=True)
    env.close()


def main() -> None:
    """The program."""
    # Each array an allocation of its own, so that its ends are seen; torch is not loaded yet.
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    cupy.cuda.set_allocator(None)
    kind, name = sys.argv[1:]
    jobs = {
        "planted": planted,
        "env": play_env,
        "game": play_game,
        "rows": play_rows,
        "rollout": roll_out,
        "extreme": play_extreme,
        "fused": learn_fused,
    }
    jobs[kind](name)


if __name__ == "__main__":
    main()
