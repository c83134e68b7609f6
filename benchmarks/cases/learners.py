"""Env steps per second of whole iterations: policies, environment and learning, each part a CUDA graph.

PPO on CartPole and Pendulum: T = 32, 4 epochs of 4 minibatches, networks of 2 x 64; by the fused kernels, by PyTorch's
operations (`torch`), and with the loss compiled (`compiled`). A2C and DDPG as WarpDrive's own examples have them, whose
networks share their hidden layers and rectify: 2 x 32, in TagContinuous 2 x 256, with two policies there; DDPG learns once
from as many transitions as an iteration has. All in TF32, but for one (`bf16`); truncated episodes bootstrapped. Capture and
compilation are not counted. Parts are timed apart as well, which tells what to tune. A step of a game of many agents is one
of them all. Where PPO is fused, `reads` compares iterations without a read of their metrics with such whose metrics the host
reads as `train` does: one iteration late, and at once. `cost` is the share of the throughput that a read takes.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, require_gpu, synchronize, wall_time


class Case(NamedTuple):
    """What is measured."""

    name: str
    env: str
    plan: Any  # settings, or those of each role
    parts: tuple[str, ...]


def cases() -> Iterator[Case]:
    """All of them."""
    from gpuvec.learners import a2c, ddpg, ppo

    learned = ("collect", "estimate", "improve")
    ways: dict[str, dict[str, Any]] = {"": {}, ".torch": {"fused": False}, ".compiled": {"fused": False, "compile": True}}
    for num_envs in (65_536, 16_384, 4096):
        for way, given in ways.items():
            if way == ".compiled" and num_envs < 65_536:  # to compile takes long
                continue
            args: Any = ppo.PPOArgs(num_envs=num_envs, num_steps=32, **given)
            yield Case(f"ppo.{num_envs}{way}", "CartPole-v1", args, learned)

    for num_envs in (65_536, 16_384, 4096):  # another game, and a Gaussian policy
        yield Case(f"ppo.pendulum.{num_envs}", "Pendulum-v1", ppo.PPOArgs(num_envs=num_envs, num_steps=32), learned)

    for compiled in (False, True):
        end = ".compiled" if compiled else ""
        theirs: dict[str, Any] = {"shared": True, "unit": "relu", "compile": compiled}
        small = {**theirs, "hidden": (32, 32)}
        args = a2c.A2CArgs(num_envs=10_000, num_steps=50, **small)
        yield Case(f"a2c.cartpole.10000{end}", "CartPole-v1", args, learned)
        grid = {"num_taggers": 4, "grid_length": 100, "max_episode_steps": 100}
        args = a2c.A2CArgs(num_envs=2000, num_steps=100, params=grid, **small)
        yield Case(f"a2c.grid.2000x5{end}", "TagGridWorld-v0", args, learned)
        large = {**theirs, "hidden": (256, 256), "num_envs": 2000, "num_steps": 20}
        of_roles = ("collect", *(f"{role}.{part}" for role in ("tagger", "runner") for part in learned[1:]))
        for agents, params in (
            ("5", {"num_taggers": 2, "num_runners": 3}),
            ("110", {"num_taggers": 10, "num_runners": 100, "use_full_observation": False, "num_other_agents_observed": 10}),
        ):
            if compiled and agents == "110":  # Triton fails to compile one of Inductor's reductions over rows so many
                continue
            args = a2c.A2CArgs(**large, params={**params, "num_acceleration_levels": 20, "num_turn_levels": 20})
            yield Case(f"a2c.open.2000x{agents}{end}", "TagContinuous-v0", {"tagger": args, "runner": args}, of_roles)
            if agents == "110":  # whose activations are gigabytes
                args = replace(args, precision="bf16")
                yield Case("a2c.open.2000x110.bf16", "TagContinuous-v0", {"tagger": args, "runner": args}, of_roles)

    args = ddpg.DDPGArgs(
        num_envs=10_000,
        num_steps=5,
        n_step=5,
        gradient_steps=1,
        batch_size=50_000,
        hidden=(32, 32),
        theta=0.15,
        learning_starts=0,
    )
    yield Case("ddpg.pendulum.10000", "Pendulum-v1", args, ("collect", "remember", "improve"))


def measure(figures: Figures, case: Case) -> None:
    """One row, and one for each part."""
    import gymnasium
    import torch

    import gpuvec  # noqa: F401  # registers the environments
    from gpuvec.learners.training import make_learner

    torch.set_float32_matmul_precision("high")  # TF32, as `train` sets it
    plan = case.plan if isinstance(case.plan, dict) else {"all": case.plan}
    plan = {
        role: replace(args, env=f"gpuvec/{case.env}", total_steps=10_000 * args.steps_per_iteration).resolved("cuda:0")
        for role, args in plan.items()
    }
    args = next(iter(plan.values()))
    options: dict[str, Any] = {"output": "torch", "autoreset_mode": "SameStep", "buffers": 1, **args.params}
    env: Any = gymnasium.make_vec(args.env, args.num_envs, device="cuda:0", **options)
    learner = make_learner(plan, env)
    start = time.perf_counter()
    learner.capture()
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    for _ in range(5):
        learner.iterate()
    of = (case.env, "vector", "learners")
    once = wall_time(learner.iterate, synchronize, 2, repeats=1).median
    iterations = max(3, min(50, int(400_000 / once)))
    took = wall_time(learner.iterate, synchronize, iterations)
    learner.read()  # which finds numbers that are not finite
    details = {"us": took.median, "spread": took.spread, "capture_s": ready, "GB": torch.cuda.max_memory_allocated() / 1e9}
    figures.add(case.name, args.steps_per_iteration / took.median, "M steps/s", of, T=args.num_steps, **details)
    for part, call in zip(case.parts, learner.stages, strict=True):
        figures.add(f"{case.name}.{part}", wall_time(call, synchronize, iterations, repeats=3).median, "us", of)
    if case.name.startswith("ppo.") and case.name.rpartition(".")[2].isdecimal():
        reads(figures, case, learner, args, iterations)
    env.close()


def reads(figures: Figures, case: Case, learner: Any, args: Any, iterations: int) -> None:
    """Rows of the ways to read the metrics; each round measures all of them, one after the other."""
    from gpuvec.learners.training import Iterations

    def iteration(exact_at: Any) -> Any:
        course = Iterations(args, learner, None, exact_at)

        def call() -> None:
            learner.iterate()
            course.read()

        return call

    ways = {"none": learner.iterate, "late": iteration(lambda k: False), "at_once": iteration(lambda k: True)}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(7):
        for way, call in ways.items():
            call()
            found[way].append(wall_time(call, synchronize, iterations, repeats=1).median)
            while learner.pending_reads:
                learner.finish_read()
    medians = {way: statistics.median(times) for way, times in found.items()}
    for way, median in medians.items():
        cost = statistics.median(1.0 - one / other for one, other in zip(found["none"], found[way], strict=True))
        of = (case.env, "vector", "learners")
        figures.add(f"reads.{case.name}.{way}", args.steps_per_iteration / median, "M steps/s", of, us=median, cost=cost)


def main() -> None:
    """Measures all cases."""
    import gc

    p = make_parser(__doc__)
    p.add_argument("--only", default="", metavar="TEXT", help="cases whose names contain it")
    p.add_argument("--cases", nargs="*", metavar="NAME", help="these cases, by their whole names")
    p.add_argument("--no-compile", action="store_true", help="leave torch.compile of the losses out")
    given = p.parse_args()
    require_gpu()
    figures = Figures("learners", given.json)
    import torch

    for case in cases():
        if given.only not in case.name or (given.no_compile and case.name.endswith("compiled")):
            continue
        if given.cases is not None and case.name not in given.cases:
            continue
        try:
            measure(figures, case)
        except Exception as error:  # noqa: BLE001  # one row that fails must not cost the others
            figures.add_failure(case.name, error)
        gc.collect()  # a learner of graphs, each with memory of its own
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
