"""Runs every kernel of an environment, or one that is wrong on purpose: what `sanitize.py` has checked on a GPU.

python tests/gpu/sanitizer_target.py env CartPole-v1
python tests/gpu/sanitizer_target.py planted memcheck
"""

from __future__ import annotations

import sys

import cupy
import numpy as np

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


def play(name: str, num_envs: int, mode: str, validate: bool) -> int:
    """20 steps with ends and all kinds of resets; returns how many episodes ended."""
    import gymnasium

    import gpuvec  # noqa: F401  # registers the environments

    per_env = ("gravity",) if name == "CartPole-v1" and validate else ()
    env = gymnasium.make_vec(
        f"gpuvec/{name}",
        num_envs=num_envs,
        device="cuda",
        output="cupy",
        autoreset_mode=mode,
        max_episode_steps=7,
        validate=validate,
        per_env=per_env,
    )
    random = np.random.default_rng(0)
    env.reset(seed=0)
    env.reset(seed=list(range(num_envs)))
    env.reset(options={"reset_mask": cupy.asarray(random.random(num_envs) < 0.5)})
    ends = 0
    for t in range(20):
        if hasattr(env.single_action_space, "n"):
            actions = cupy.asarray(random.integers(0, env.single_action_space.n, num_envs, dtype="int32" if t % 2 else "int64"))
        else:
            space = env.single_action_space
            actions = cupy.asarray(random.uniform(space.low, space.high, (num_envs, *space.shape)).astype("float32"))
        obs, reward, terminated, truncated, _ = env.step(actions)
        assert np.isfinite(obs.get()).all()
        assert np.isfinite(reward.get()).all()
        done = terminated.get() | truncated.get()
        ends += int(done.sum())
        if mode == "Disabled" and done.any():
            env.reset(options={"reset_mask": cupy.asarray(done)})
    env.close()
    return ends


def main() -> None:
    """The program."""
    cupy.cuda.set_allocator(None)  # each array an allocation of its own, so that its ends are seen
    kind, name = sys.argv[1:]
    if kind == "planted":
        planted(name)
        return
    for mode in ("SameStep", "NextStep", "Disabled"):
        for num_envs, validate in ((64, False), (300, True)):  # whole blocks and a part of one
            ends = play(name, num_envs, mode, validate)
            assert ends >= num_envs, f"only {ends} episodes ended"
            print("checked", name, mode, num_envs, "validate" if validate else "", flush=True)


if __name__ == "__main__":
    main()
