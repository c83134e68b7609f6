"""Env steps per second of whole training iterations, with each stage in a CUDA graph.

PPO on CartPole and Pendulum: T = 32, 4 epochs of 4 minibatches, networks of 2 x 64; with fused kernels, with PyTorch operations
(`torch`), and with a compiled loss (`compiled`). On the images of Breakout the network has a convolution of 16 filters and a
layer of 128 units, which policy and value function share. A2C and DDPG have the settings of WarpDrive's examples, whose
networks share hidden layers of rectified units: 2 x 32, in TagContinuous 2 x 256 with two policies; DDPG makes one update per
iteration, with as many transitions as an iteration has. All cases use TF32, except those in bfloat16 (`bf16`), and bootstrap
where an episode is truncated. Capture and compilation do not count. The stages are also timed on their own, which shows what to
optimize. A step of a game counts once for all its agents.

Where PPO is fused, `reads` compares iterations whose metrics the host does not read with iterations whose metrics it reads as
`train` does: one iteration late, or immediately. `cost` is the share of the throughput that a read takes.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, require_gpu, synchronize, wall_time

ON_POLICY = ("collect", "estimate", "improve")
OF_ROLES = ("collect", *(f"{role}.{stage}" for role in ("tagger", "runner") for stage in ON_POLICY[1:]))
# Games of TagContinuous: environments of PPO, agents, and parameters.
OPEN_GAMES: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (16_384, 5, {"num_taggers": 2, "num_runners": 3}),
    (2000, 110, {"num_taggers": 10, "num_runners": 100, "use_full_observation": False, "num_other_agents_observed": 10}),
)
LEVELS = {"num_acceleration_levels": 20, "num_turn_levels": 20}


class Case(NamedTuple):
    """What is measured."""

    name: str
    env: str
    policies: Any  # settings, or {role: settings}
    stages: tuple[str, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that the figures depend on."""
        return (self.env, "vector", "learners")


def list_cases() -> Iterator[Case]:
    """Yields all cases."""
    yield from list_ppo_cases()
    for is_compiled in (False, True):
        yield from list_a2c_cases(is_compiled)
    yield make_ddpg_case()


def list_ppo_cases() -> Iterator[Case]:
    """Yields the cases of PPO."""
    from gpuvec.learners.ppo import PPOArgs

    implementations: dict[str, dict[str, Any]] = {
        "": {},
        ".torch": {"fused": False},
        ".compiled": {"fused": False, "compile": True},
    }
    for num_envs in (65_536, 16_384, 4096):
        for suffix, settings in implementations.items():
            if suffix == ".compiled" and num_envs < 65_536:  # compilation takes long
                continue
            args: Any = PPOArgs(num_envs=num_envs, num_steps=32, **settings)
            yield Case(f"ppo.{num_envs}{suffix}", "CartPole-v1", args, ON_POLICY)
    for num_envs in (65_536, 16_384, 4096):  # an environment with a Gaussian policy
        yield Case(f"ppo.pendulum.{num_envs}", "Pendulum-v1", PPOArgs(num_envs=num_envs, num_steps=32), ON_POLICY)
    for num_envs, agents, params in OPEN_GAMES:
        args = PPOArgs(num_envs=num_envs, num_steps=32, hidden=(64, 64), params={**params, **LEVELS})
        yield Case(f"ppo.open.{num_envs}x{agents}", "TagContinuous-v0", {"tagger": args, "runner": args}, OF_ROLES)
    wide = replace(args, hidden=(256, 256))  # of the largest game
    yield Case(f"ppo.open.{num_envs}x{agents}.256_units", "TagContinuous-v0", {"tagger": wide, "runner": wide}, OF_ROLES)
    args = PPOArgs(num_envs=65_536, num_steps=32, hidden=(256, 256))
    yield Case("ppo.65536.256_units", "CartPole-v1", args, ON_POLICY)
    args = PPOArgs(num_envs=16_384, num_steps=32, hidden=(64, 64))
    yield Case("ppo.connect_four.16384", "ConnectFour-v0", args, ON_POLICY)
    for suffix, settings in {"": {}, ".bf16": {"precision": "bf16"}, ".compiled": {"compile": True}}.items():  # with images
        args = PPOArgs(num_envs=4096, num_steps=32, hidden=(128,), activation="relu", **settings)
        yield Case(f"ppo.breakout.4096{suffix}", "Breakout-v0", args, ON_POLICY)


def list_a2c_cases(is_compiled: bool) -> Iterator[Case]:
    """Yields the cases of A2C; if `is_compiled`, those whose loss is compiled."""
    from gpuvec.learners.a2c import A2CArgs

    suffix = ".compiled" if is_compiled else ""
    shared: dict[str, Any] = {"shared": True, "activation": "relu", "compile": is_compiled}
    small = {**shared, "hidden": (32, 32)}
    args = A2CArgs(num_envs=10_000, num_steps=50, **small)
    yield Case(f"a2c.cartpole.10000{suffix}", "CartPole-v1", args, ON_POLICY)
    grid = {"num_taggers": 4, "grid_length": 100, "max_episode_steps": 100}
    args = A2CArgs(num_envs=2000, num_steps=100, params=grid, **small)
    yield Case(f"a2c.grid.2000x5{suffix}", "TagGridWorld-v0", args, ON_POLICY)
    large = {**shared, "hidden": (256, 256), "num_envs": 2000, "num_steps": 20}
    for _, agents, params in OPEN_GAMES:
        # Triton fails to compile one of Inductor's reductions over the rows of 110 agents.
        if is_compiled and agents == 110:
            continue
        args = A2CArgs(**large, params={**params, **LEVELS})
        yield Case(f"a2c.open.2000x{agents}{suffix}", "TagContinuous-v0", {"tagger": args, "runner": args}, OF_ROLES)
        if agents == 110:  # whose activations take gigabytes
            args = replace(args, precision="bf16")
            yield Case("a2c.open.2000x110.bf16", "TagContinuous-v0", {"tagger": args, "runner": args}, OF_ROLES)


def make_ddpg_case() -> Case:
    """Returns the case of DDPG."""
    from gpuvec.learners.ddpg import DDPGArgs

    args = DDPGArgs(
        num_envs=10_000,
        num_steps=5,
        n_step=5,
        gradient_steps=1,
        batch_size=50_000,
        hidden=(32, 32),
        normalize=False,
        learning_starts=0,
    )
    return Case("ddpg.pendulum.10000", "Pendulum-v1", args, ("collect", "store", "improve"))


def measure(figures: Figures, case: Case) -> None:
    """Adds to `figures` one row for a `case`, and one for each of its stages."""
    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments
    from gpuvec.learners.training import make_learner

    policies = case.policies if isinstance(case.policies, dict) else {"all": case.policies}
    policies = {
        role: replace(args, env=f"gpuvec/{case.env}", total_steps=10_000 * args.steps_per_iteration).resolved("cuda:0")
        for role, args in policies.items()
    }
    args = next(iter(policies.values()))
    options: dict[str, Any] = {"output": "torch", "autoreset_mode": "SameStep", "buffers": 1, **args.params}
    env: Any = gymnasium.make_vec(args.env, args.num_envs, device="cuda:0", **options)
    learner = make_learner(policies, env)
    start = time.perf_counter()
    learner.capture()
    torch.cuda.synchronize()
    capture_seconds = time.perf_counter() - start
    for _ in range(5):
        learner.iterate()
    once = wall_time(learner.iterate, synchronize, 2, repeats=1).median
    iterations = max(3, min(50, int(400_000 / once)))
    timing = wall_time(learner.iterate, synchronize, iterations)
    learner.read()  # raises an error if a number is not finite
    details = {"us": timing.median, "spread": timing.spread, "capture_s": capture_seconds}
    details["GB"] = torch.cuda.max_memory_allocated() / 1e9
    rate = args.steps_per_iteration / timing.median
    figures.add(case.name, rate, "M steps/s", case.sources, T=args.num_steps, **details)
    for stage, call in zip(case.stages, learner.stages, strict=True):
        microseconds = wall_time(call, synchronize, iterations, repeats=3).median
        figures.add(f"{case.name}.{stage}", microseconds, "us", case.sources)
    if case.name.startswith("ppo.") and case.name.rpartition(".")[2].isdecimal():
        measure_reads(figures, case, learner, args, iterations)
    env.close()


def measure_reads(figures: Figures, case: Case, learner: Any, args: Any, iterations: int) -> None:
    """Adds a row for each way to read the metrics; in a repetition all ways are measured in turn.

    Args:
        figures: where the rows are added.
        case: what the learner learns.
        learner: the learner, captured.
        args: its settings, resolved.
        iterations: how many iterations a measurement has.
    """
    from gpuvec.learners.iterations import Iterations

    def iterate_and_read(exact_at: Callable[[int], bool]) -> Callable[[], None]:
        progress = Iterations(args, learner, None, exact_at)

        def call() -> None:
            learner.iterate()
            progress.read()

        return call

    calls = {
        "none": learner.iterate,
        "late": iterate_and_read(lambda iteration: False),
        "immediate": iterate_and_read(lambda iteration: True),
    }
    microseconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(7):
        for name, call in calls.items():
            call()
            microseconds[name].append(wall_time(call, synchronize, iterations, repeats=1).median)
            while learner.pending_reads:
                learner.finish_read()
    for name, times in microseconds.items():
        median = statistics.median(times)
        cost = statistics.median(1.0 - none / us for none, us in zip(microseconds["none"], times, strict=True))
        rate = args.steps_per_iteration / median
        figures.add(f"reads.{case.name}.{name}", rate, "M steps/s", case.sources, us=median, cost=cost)


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names contain the text")
    parser.add_argument("--cases", nargs="*", metavar="NAME", help="cases with these names")
    parser.add_argument("--no-compile", action="store_true", help="leave out the cases with torch.compile")
    arguments = parser.parse_args()
    require_gpu()
    figures = Figures("learners", arguments.json)
    from gpuvec.learners.cuda_graphs.settings import torch_settings

    with torch_settings("cuda", threads=1):
        measure_cases(figures, arguments)


def measure_cases(figures: Figures, arguments: Any) -> None:
    """Measures the cases that the `arguments` of the command line select, and adds their rows to `figures`."""
    import torch

    for case in list_cases():
        if arguments.only not in case.name or (arguments.no_compile and case.name.endswith("compiled")):
            continue
        if arguments.cases is not None and case.name not in arguments.cases:
            continue
        with figures.continue_after_failure(case.name):
            measure(figures, case)
        gc.collect()  # the graphs of a learner hold memory of their own
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
