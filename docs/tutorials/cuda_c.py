# %% [markdown]
# # Write functions in CUDA C++
#
# After this tutorial you can replace single functions of an environment by CUDA C++, check that they compute the same, and
# measure them.
#
# Numba compiles Python to the same machine code that a C++ compiler produces for the same arithmetic
# ([benchmarks](../benchmarks.md)), so most environments need no other language. CUDA C++ is useful if you have a simulator in
# it already, or need an instruction that Python cannot express. Write *that function* in C++ and leave the others unchanged.
#
# ## An environment in Python
#
# Wolves and sheep without the berries: a wolf catches a sheep within reach.

# %%
import math
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import gpuvec
from gpuvec import Bools, Floats, Ints, Key, MultiAgentEnv, NearestNeighbors, Observation, Time, uniform
from gpuvec.errors import AuthoringError
from gpuvec.testing import check_env

WOLF, SHEEP = 0, 1  # roles
INFINITY = math.inf


class State(NamedTuple):
    x: Floats  # [m]
    y: Floats
    alive: Bools  # in the game
    rival: Annotated[Ints, "agents", "rivals", NearestNeighbors]  # the nearest of the other role
    role: Ints
    agents_by_role: Ints


class Params(NamedTuple):
    num_wolves: int = 5
    num_sheep: int = 45
    side: float = 20.0  # of the meadow [m]
    step: float = 0.4  # [m]
    reach: float = 0.5  # of a mouth [m]
    rivals: int = 3  # how many of the other role one sees


def agents(p: Params) -> int:
    return p.num_wolves + p.num_sheep


def roles(p: Params) -> dict[str, int]:
    return {"wolf": p.num_wolves, "sheep": p.num_sheep}


def reset(i: int, s: State, key: Key, p: Params) -> None:
    s.x[i], s.y[i] = uniform(key, 2 * i, 0.0, p.side), uniform(key, 2 * i + 1, 0.0, p.side)
    s.alive[i] = True


def move(i: int, s: State, action: int, key: Key, p: Params) -> None:
    if s.alive[i]:
        dx = p.step if action == 1 else -p.step if action == 2 else 0.0
        dy = p.step if action == 3 else -p.step if action == 4 else 0.0
        s.x[i], s.y[i] = min(max(s.x[i] + dx, 0.0), p.side), min(max(s.y[i] + dy, 0.0), p.side)


def hunt(i: int, s: State, action: int, key: Key, p: Params) -> None:
    """A sheep finds out whether a wolf reaches it."""
    if s.role[i] == SHEEP and s.alive[i]:
        for k in range(p.num_wolves):
            j = s.agents_by_role[k]
            if (s.x[i] - s.x[j]) ** 2 + (s.y[i] - s.y[j]) ** 2 < p.reach * p.reach:
                s.alive[i] = False


def active(i: int, s: State, p: Params) -> bool:
    return bool(s.alive[i])


def reward(i: int, s: State, t: Time, p: Params) -> float:
    return 0.01 if s.role[i] == SHEEP and s.alive[i] else 0.0


def terminated(i: int, s: State, p: Params) -> bool:
    return bool(s.role[i] == WOLF or not s.alive[i])


def distance(i: int, j: int, s: State, p: Params) -> float:
    x, y = s.x[i] - s.x[j], s.y[i] - s.y[j]
    return x * x + y * y if s.alive[j] and s.role[i] != s.role[j] else INFINITY


def other_features(i: int, slot: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    j = s.rival[i, slot]
    if j < 0:
        return 0.0, 0.0
    return (s.x[j] - s.x[i]) / p.side, (s.y[j] - s.y[i]) / p.side


def itself(i: int, s: State, t: Time, p: Params) -> tuple[float, float]:
    return s.x[i] / p.side, s.y[i] / p.side


def observation(p: Params) -> Observation:
    rivals = NearestNeighbors("rival", distance, position=("x", "y"), squared=True)
    return Observation(itself, other_features, p.rivals, rivals)


def spaces(p: Params) -> tuple[Box, Discrete]:
    return Box(-1.0, 1.0, (2 * p.rivals + 2,)), Discrete(5)


# %% [markdown]
# ## The functions in CUDA C++
#
# The file has `__device__` functions with the *names of the Python functions*, as many as you like; functions that it does not
# have stay Python. The types have the Python names. `State` holds the address of the env's elements for each field, and
# `Params` the parameters, which are compile-time constants unless they are stored per env. `Key`, `Time`, `Action`, `uniform`,
# `sincos` and the others are available, and the constants `AGENTS` and `MAX_NEIGHBORS`. A tuple of N numbers is a `Floats<N>`.
#
# These are the phase `hunt` and the two functions of the search, which take most of the time in this game.

# %%
folder = Path(tempfile.mkdtemp())
file = folder / "flock.cu"
SOURCE = """
constexpr int SHEEP = 1;

__device__ void hunt(int i, State& s, Action action, const Key& key, const Params& p) {
    if (s.role[i] != SHEEP || !s.alive[i]) return;
    bool caught = false;
    for (int k = 0; k < p.num_wolves; k++) {
        const int j = s.agents_by_role[k];
        const float x = s.x[i] - s.x[j], y = s.y[i] - s.y[j];
        caught |= x * x + y * y < p.reach * p.reach;
    }
    if (caught) s.alive[i] = false;
}

__device__ float distance(int i, int j, const State& s, const Params& p) {
    const float x = s.x[i] - s.x[j], y = s.y[i] - s.y[j];
    return s.alive[j] && s.role[i] != s.role[j] ? x * x + y * y : INFINITY;
}

__device__ Floats<2> other_features(int i, int slot, const State& s, Time t, const Params& p) {
    const int j = s.rival[i][slot];
    if (j < 0) return {};
    return {(s.x[j] - s.x[i]) / p.side, (s.y[j] - s.y[i]) / p.side};
}
"""
_ = file.write_text(SOURCE)

ENV = MultiAgentEnv(
    state=State, params=Params(), spaces=spaces, agents=agents, roles=roles, reset=reset, phases=(move, hunt), reward=reward,
    terminated=terminated, active=active, observation=observation, structural=("num_wolves", "num_sheep", "rivals"),
    max_episode_steps=200, cuda_c=str(file),
)  # fmt: skip
gpuvec.register("my/Flock-v0", ENV)

# %% [markdown]
# In a package the file is beside the module and named by `cuda_c="flock.cu"`. `gpuvec new-env --cuda-c` writes such a package.
#
# ## Check it
#
# {func}`~gpuvec.testing.check_env` compiles the file, with or without a GPU. If there is a C++ compiler, it also compares the
# functions with the Python functions on the CPU. `nvcc` is not needed: the compiler comes with the extra `cuda13`, or with
# `compile` on a machine without a GPU.

# %%
for check in check_env("my/Flock-v0", num_envs=3, steps=8):
    if check.name in ("sm_90", "CUDA C++"):
        print(check.detail)

# %% [markdown]
# Errors name the line, the rule and a remedy.

# %%
WRONG = {"s.alive[j] &&": "s.alife[j] &&", "+ y * y <": "+ 2.0 * y * y <", "float distance": "float distanse"}
for old, new in WRONG.items():
    _ = file.write_text(SOURCE.replace(old, new, 1))
    try:
        check_env("my/Flock-v0", num_envs=3, steps=8)
    except AuthoringError as error:
        print(str(error).replace(str(folder), "..."), end="\n\n")
_ = file.write_text(SOURCE)

# %% [markdown]
# `gpuvec check` plays random actions on all targets, from the same state in every step, and compares all results. For an
# environment in a module:
#
# ```console
# gpuvec check my_package:my/Flock-v0 --targets cuda-c-cpu    # on a CPU, with its C++ compiler
# gpuvec check my_package:my/Flock-v0 --targets numba,cuda-c  # on a GPU
# ```
#
# ## Measure it
#
# `backend="cuda-c"` uses the functions of the file. Measure both before you maintain two versions of a rule.

# %%
options = {"num_envs": 2000, "output": "torch", "autoreset_mode": "SameStep", "buffers": 1}
if gymnasium.make_vec("my/Flock-v0", num_envs=1).device == "cpu":
    print("there is no GPU here, on which functions in CUDA C++ run")
else:
    import torch

    played = {}
    for backend in ("numba", "cuda-c"):
        envs = gymnasium.make_vec("my/Flock-v0", backend=backend, **options)
        envs.reset(seed=0)
        actions = torch.randint(0, 5, (200, 2000, 50), generator=torch.Generator().manual_seed(0)).to(envs.device)
        first = [envs.step(action)[0].clone() for action in actions[:10]]
        torch.cuda.synchronize()
        start = time.perf_counter()
        for action in actions:
            envs.step(action)
        torch.cuda.synchronize()
        played[backend] = torch.stack(first).cpu().numpy()
        print(f"{backend}: {(time.perf_counter() - start) / len(actions) * 1e6:.0f} us a step")
    np.testing.assert_allclose(played["numba"], played["cuda-c"], atol=1e-4)
