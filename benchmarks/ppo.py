"""Env steps per second of whole PPO iterations on CartPole: inference, environment and learning, each a CUDA graph.

T = 32, 4 epochs of 4 minibatches, networks of 2 x 64, TF32, truncated episodes bootstrapped. Capture and compilation are
not counted. Parts are timed apart as well, which tells what to tune.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from measure import Figures, Timing, parser, timing

OF = ("CartPole-v1", "vector", "learners")


def clock(call: Callable[[], object], iterations: int, repeats: int = 5) -> Timing:
    """Microseconds per call, host and device, the device idle before and after."""
    import torch

    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(iterations):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / iterations * 1e6)
    return timing(found)


def measure(figures: Figures, num_envs: int, compiled: bool) -> None:
    """One row, and one for each part."""
    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments
    from gpuvec.learners.ppo import PPO, Args

    torch.set_float32_matmul_precision("high")  # TF32, as `train` sets it
    args = Args(num_envs=num_envs, num_steps=32, total_steps=10_000 * num_envs * 32, compile=compiled).resolved("cuda:0")
    env: Any = gymnasium.make_vec(args.env, num_envs, device="cuda:0", output="torch", autoreset_mode="SameStep")
    learner = PPO(args, env)
    start = time.perf_counter()
    learner.capture()
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    for _ in range(5):
        learner.iterate()
    iterations = 20 if num_envs <= 16_384 else 8
    took = clock(learner.iterate, iterations)
    name = f"{num_envs}{'.compiled' if compiled else ''}"
    figures.add(name, args.batch_size / took.median, "M steps/s", OF, us=took.median, spread=took.spread, capture_s=ready)
    for part, call in zip(("collect", "estimate", "improve"), learner.parts, strict=True):
        figures.add(f"{name}.{part}", clock(call, iterations, repeats=3).median, "us", OF)
    env.close()


def main() -> None:
    """Measures all cases."""
    p = parser(__doc__)
    p.add_argument("--sizes", nargs="*", type=int, default=[65_536, 16_384, 4096], metavar="E")
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile of the loss out")
    given = p.parse_args()
    figures = Figures("ppo", given.json)
    for compiled in (False,) if given.no_compile else (False, True):
        for num_envs in given.sizes if not compiled else given.sizes[:1]:
            try:
                measure(figures, num_envs, compiled)
            except Exception as error:  # noqa: BLE001  # one row that fails must not cost the others
                figures.failed(f"{num_envs}{'.compiled' if compiled else ''}", error)


if __name__ == "__main__":
    main()
