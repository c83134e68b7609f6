"""Weak scaling of PPO on 1 to 8 GPUs: steps per second, the share of exchanges, equal bits, and the time for 10^12 steps.

    python benchmarks/multi_gpu.py                       # all GPUs of the machine, or one
    python benchmarks/multi_gpu.py --device cpu          # processes of the CPU, which exchange by gloo

A world is a number of processes with one device each, and with equally many environments each. Variants of a world are

- `fused`: fused kernels, which write gradients into each other's memory, with one shard for each process;
- `fused.nccl`: the same, but NCCL exchanges the gradients;
- `torch`: PyTorch operations, with one shard for each process, added in a fixed order;
- `torch.plain`: the same, added by an all-reduce in the order of the library.

In the world of one process `fused` and `torch` train without a process group. `shards2.group` sends the numbers of two shards
through NCCL (or gloo) to itself, and its `cost` is relative to `shards2`, which does not. The `cost` of 8 shards in one process
is relative to one shard. The share of exchanges is the time of all exchanges of an iteration by themselves over that of the
iteration; writes of fused kernels into the memory of other GPUs are not exchanges. `bits` is 1 if a training of all worlds,
with 8 shards, ends with equal weights.

Each world runs in processes of its own, which are killed when the limit is over. A variant that cannot be used is printed with
the reason. The time for 10^12 steps follows from the speed; `--run-steps` measures that of so many steps in the largest world.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.tools.child_processes import ProcessFailure, run_processes
from benchmarks.tools.measure import Figures, make_parser, require_gpu

WORKER = Path(__file__).resolve().parent / "tools" / "multi_gpu_worker.py"
ENV = "CartPole-v1"
SOURCES = (ENV, "vector", "learners")
WORLDS = (1, 2, 4, 8)
STEPS = 10**12  # whose time is computed
SMALL = {"envs": 64, "steps": 16, "seconds": 0.2, "shards": 4}  # on a CPU
LARGE = {"envs": 65_536, "steps": 32, "seconds": 1.0, "shards": 8}
Result = dict[str, Any]


def measure_world(world: int, options: Namespace, is_last: bool, seconds: float) -> Result:
    """Returns what the processes of a world measured.

    Args:
        world: the number of processes.
        options: the command line.
        is_last: whether the long training is in this world.
        seconds: within which the processes must have ended.

    Raises:
        ProcessFailure: one of them failed, or the time was over.
    """
    settings = {
        "device": options.device, "env": f"gpuvec/{ENV}", "num_envs": options.envs, "num_steps": options.steps,
        "shards": options.shards, "seconds": options.seconds, "rounds": options.rounds, "iterations": options.iterations,
        "run_steps": options.run_steps if is_last else 0,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "settings.json", Path(folder) / "answer.json"
        question.write_text(json.dumps(settings))
        run_processes(WORKER, [str(question), str(answer)], world, seconds)
        result: Result = json.loads(answer.read_text())
        return result


def add_world(figures: Figures, world: int, results: dict[int, Result]) -> None:
    """Adds a row for each variant of a world.

    Args:
        figures: where the rows are added.
        world: the number of processes.
        results: {world: its result} of the worlds so far.
    """
    variants = results[world]["variants"]
    missing = results[world]["missing"]
    for reason in dict.fromkeys(missing.values()):
        names = ", ".join(f"{world}.{name}" for name, other in missing.items() if other == reason)
        print(f"not measured: {names}: {reason}", flush=True)
    for name, variant in variants.items():
        rate = rate_of(variant)
        seconds = statistics.median(variant["seconds"])
        details = {"ms": seconds * 1e3, "spread": (max(variant["seconds"]) - min(variant["seconds"])) / seconds}
        if efficiency := efficiency_of(name, world, results):
            details["efficiency"] = efficiency
        details |= {"exchanges": variant["exchanges"], "KB": variant["bytes"] / 1e3}
        details["exchange_share"] = variant["exchange_seconds"] / seconds
        if world == 1 and (base := name.rpartition(".")[0]):
            details["cost"] = cost_of(variant, variants[base])
        figures.add(f"{world}.{name}", rate / 1e6, "M steps/s", SOURCES, hours_for_1e12=STEPS / rate / 3600, **details)


def rate_of(variant: Result) -> float:
    """Returns the environment steps per second of all processes."""
    return float(variant["steps"] / statistics.median(variant["seconds"]))


def cost_of(variant: Result, other: Result) -> float:
    """Returns the share of the throughput that a variant loses against another one, the median over the rounds."""
    pairs = zip(variant["seconds"], other["seconds"], strict=True)
    return statistics.median(1.0 - theirs / own for own, theirs in pairs)


def efficiency_of(name: str, world: int, results: dict[int, Result]) -> float | None:
    """Returns the speed per process relative to that of one process; None for a variant that is in one world only."""
    alone = results.get(1, {"variants": {}})["variants"].get(name.partition(".")[0])
    if alone is None or (world == 1 and "." in name):
        return None
    return rate_of(results[world]["variants"][name]) / (world * rate_of(alone))


def add_bits(figures: Figures, results: dict[int, Result]) -> bool:
    """Adds whether the weights of all worlds are equal, for each implementation; returns whether all are."""
    all_equal = True
    for name in ("torch", "fused"):
        digests = {world: digest for result in results.values() for world, digest in result["bits"][name].items()}
        if digests:
            is_equal = len(set(digests.values())) == 1
            all_equal &= is_equal
            texts = {f"world_{world}": digest for world, digest in digests.items()}
            figures.add(f"bits.{name}", float(is_equal), "", SOURCES, **texts)
    return all_equal


def add_run(figures: Figures, world: int, run: Result) -> None:
    """Adds the time of the long training."""
    rate = run["steps"] / run["seconds"]
    figures.add(
        f"{world}.run", run["seconds"], "s", SOURCES, steps=run["steps"], variant=run["variant"], M_steps_per_s=rate / 1e6
    )


def print_summary(results: dict[int, Result]) -> None:
    """Prints a table of all worlds."""
    from gpuvec.cli.terminal import print_table

    rows = [["processes", "variant", "M steps/s", "efficiency", "exchanges", "share", "10^12 steps"]]
    for world, result in results.items():
        for name, variant in result["variants"].items():
            rate, efficiency = rate_of(variant), efficiency_of(name, world, results)
            share = variant["exchange_seconds"] / statistics.median(variant["seconds"])
            rows.append([
                f"{world}", name, f"{rate / 1e6:,.4g}", "-" if efficiency is None else f"{efficiency:.1%}",
                f"{variant['exchanges']}", f"{share:.1%}", f"{STEPS / rate / 3600:,.2f} h",
            ])  # fmt: skip
    print_table(rows)


def choose_worlds(options: Namespace, parser: ArgumentParser) -> list[int]:
    """Returns the numbers of processes to measure, in ascending order."""
    if options.device == "cpu":
        available, default = WORLDS[-1], WORLDS[:2]
    else:
        import torch

        require_gpu()
        available, default = torch.cuda.device_count(), WORLDS
    worlds = sorted(set(options.worlds or [world for world in default if world <= available]))
    if any(not 1 <= world <= available or options.shards % world for world in worlds):
        parser.error(f"worlds must be from 1 to {available} and divide {options.shards} shards, got {worlds}")
    return worlds


def parse_options() -> tuple[Namespace, list[int]]:
    """Returns the command line, and the worlds."""
    parser = make_parser(__doc__)
    # Otherwise the processes would compile the environment again in each world.
    del os.environ["GPUVEC_CACHE"]
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--worlds", nargs="*", type=int, metavar="N", help="by default 1, 2, 4 and 8, as far as there are GPUs")
    parser.add_argument("--envs", type=int, help=f"of each process; {LARGE['envs']:,}, on a CPU {SMALL['envs']}")
    parser.add_argument("--steps", type=int, help=f"of a rollout; {LARGE['steps']}, on a CPU {SMALL['steps']}")
    parser.add_argument("--shards", type=int, help=f"in the comparison of bits; {LARGE['shards']}, on a CPU {SMALL['shards']}")
    parser.add_argument("--seconds", type=float, help=f"of each variant; {LARGE['seconds']}, on a CPU {SMALL['seconds']}")
    parser.add_argument("--rounds", type=int, default=5, help="parts of these seconds")
    parser.add_argument("--iterations", type=int, default=3, help="after which bits are compared")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds within which all worlds must have ended")
    parser.add_argument("--run-steps", type=float, default=0, help="measure a training of so many steps; give a --limit for it")
    options = parser.parse_args()
    for name, value in (LARGE if options.device == "cuda" else SMALL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.run_steps = int(options.run_steps)
    return options, choose_worlds(options, parser)


def main() -> int:
    """Measures all worlds; returns 1 if one of them failed or if bits differ."""
    options, worlds = parse_options()
    # So that the processes end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    figures, results = Figures("multi_gpu", options.json), {}
    end = time.monotonic() + options.limit
    for world in worlds:
        try:
            results[world] = measure_world(world, options, world == worlds[-1], max(1.0, end - time.monotonic()))
        except ProcessFailure as error:
            figures.add_failure(f"{world}", error)
            continue
        add_world(figures, world, results)
        if run := results[world].get("run"):
            add_run(figures, world, run)
    if not results:
        return 1
    is_equal = add_bits(figures, results)
    print_summary(results)
    return int(not is_equal or len(results) < len(worlds))


if __name__ == "__main__":
    sys.exit(main())
