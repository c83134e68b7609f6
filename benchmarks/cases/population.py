"""Populations of trainings by PPO: steps per second, agents that learn, the time until the first iteration, and searches.

The settings are those that PureJaxRL publishes, as in `peers/jax_population.py`: 4 environments x 128 steps, and 976 iterations
on CartPole, 500 k steps of each agent. The parts are:

    kernel   the kernel whose blocks are agents, on CartPole, with the agents that learn
    portable the same with the instructions of other GPUs, and with their shared memory: see --variants
    batched  batched operations, on CartPole, for a few iterations
    envs     the kernel on other environments
    start    seconds from `gpuvec train --population` to the first iteration, with an empty cache of kernels and a full one
    pbt      milliseconds that a step of population-based training takes between launches
    sweep    seconds of the command `gpuvec sweep` to its end, with all of its report, and what it found

Steps are counted from the second launch on, with the time to read the metrics of all agents. `whole` is all of
`train_population`, with compilation and initial weights; `start` and `sweep` count from the start of the process. On a CPU,
where `kernel`, `portable` and `envs` fail, all other parts use batched operations.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.learning import add_learning
from benchmarks.tools.measure import Figures, make_parser

CARTPOLE, OTHERS = "CartPole-v1", ("Acrobot-v1", "MountainCar-v0", "Pendulum-v1")
LAYERS = ("vector", "learners")
SETTINGS: dict[str, Any] = {
    "num_envs": 4, "num_steps": 128, "update_epochs": 4, "num_minibatches": 4, "hidden": (64, 64), "activation": "tanh",
    "learning_rate": 2.5e-4, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95, "clip": 0.2, "clip_value": True,
    "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, "normalize": False,
}  # fmt: skip
STEPS = SETTINGS["num_envs"] * SETTINGS["num_steps"]  # of an agent in an iteration
RANGES = (
    ("learning_rate", "log", 1e-5, 3e-2), ("ent_coef", "linear", 0.0, 0.05), ("gamma", "linear", 0.9, 0.999),
    ("gae_lambda", "linear", 0.8, 1.0),
)  # fmt: skip
"""The settings that a search varies."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the block when `seconds` have passed."""

    def end(number: int, frame: object) -> None:
        raise TimeoutError(f"not finished in {seconds} s")

    previous = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


class Training(NamedTuple):
    """A training whose rate is measured."""

    env: str
    num_agents: int
    iterations: int  # of each agent
    launch: int  # iterations between two reads of the metrics
    fused: bool  # whether the kernel trains
    variant: str = ""  # one of `VARIANTS`, or "" for that of the GPU


# {compute capability: kilobytes of shared memory of a block}, which the portable kernel has as on such a GPU.
VARIANTS = {"8.0": 163, "8.6": 99, "9.0": 227}


@contextmanager
def portable_kernel(variant: str) -> Iterator[None]:
    """Trains with the portable kernel in the block, as on a GPU of the compute capability `variant`; "" changes nothing."""
    from gpuvec.learners.population.kernel import kernel_population
    from gpuvec.learners.population.kernel.population_kernel import KernelVariant

    selected = kernel_population.device_variant
    if variant:
        kernel_population.device_variant = lambda device: KernelVariant(True, VARIANTS[variant] * 1024)
    try:
        yield
    finally:
        kernel_population.device_variant = selected


def default_fused(device: str) -> bool | str:
    """Returns the value of `PPOArgs.fused` with which the kernel trains on a GPU, and batched operations on the CPU."""
    return "auto" if device == "cpu" else True


def measure_training(figures: Figures, name: str, training: Training, device: str) -> None:
    """Adds the rate of a training, and for the kernel on CartPole the agents that have learned.

    Args:
        figures: where the rows are added.
        name: of the row.
        training: what is measured.
        device: of the population.
    """
    from gpuvec.learners.population.population_args import PopulationArgs
    from gpuvec.learners.population.population_training import train_population
    from gpuvec.learners.ppo import PPOArgs

    env, num_agents, iterations, launch, fused, _ = training
    base = PPOArgs(env=f"gpuvec/{env}", device=device, total_steps=iterations * STEPS, fused=fused, **SETTINGS)
    start = time.perf_counter()
    with portable_kernel(training.variant):
        result = train_population(PopulationArgs(base, num_agents), iterations_per_launch=launch)
    whole, history = time.perf_counter() - start, result.history
    counted = history.seconds[-1] - history.seconds[launch - 1]
    rate = num_agents * (iterations - launch) * STEPS / counted / 1e6
    details = {"seconds": float(history.seconds[-1]), "whole": whole, "iterations": iterations, "launch": launch}
    details |= {"stopped": int((history.stopped_at >= 0).sum())}
    figures.add(name, rate, "M steps/s", (env, *LAYERS), **details)
    if env == CARTPOLE and fused:
        add_learning(figures, name, history.metrics["last_return"], (env, *LAYERS))


def options_of(settings: dict[str, Any]) -> list[str]:
    """Returns settings as options of the command line."""
    options = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool) and name != "fused":
            options.append(option if value else option.replace("--", "--no-", 1))
        else:
            options += [option, *(str(item) for item in (value if isinstance(value, tuple) else (value,)))]
    return options


def time_command(arguments: list[str], cache: str, is_ended_at_first_metrics: bool) -> float:
    """Returns the seconds that a command of gpuvec takes to its first line of metrics, or to its end.

    Args:
        arguments: of the command.
        cache: the folder of kernels.
        is_ended_at_first_metrics: whether it is ended when it has printed the first line of metrics.

    Raises:
        RuntimeError: it failed, or ended without metrics; the message is what it printed last.
    """
    environment, lines = {**os.environ, "GPUVEC_CACHE": cache, "PYTHONUNBUFFERED": "1"}, list[str]()
    command, start = [sys.executable, "-m", "gpuvec", *arguments], time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None, "it is a pipe"
    try:
        for line in process.stdout:
            lines.append(line)
            if is_ended_at_first_metrics and re.match(r" *\d+/\d+ ", line):
                return time.perf_counter() - start
        if process.wait() or is_ended_at_first_metrics:
            raise RuntimeError("".join(lines)[-800:])
        return time.perf_counter() - start
    finally:
        process.kill()
        process.wait()


def measure_start(figures: Figures, num_agents: int, cache: str, arguments: Any) -> None:
    """Adds the time to the first iteration with an empty cache, if it is empty, and with a full one.

    Args:
        figures: where the rows are added.
        num_agents: P.
        cache: the folder of kernels.
        arguments: of the command line.
    """
    settings = SETTINGS | {"device": arguments.device, "fused": default_fused(arguments.device), "total_steps": 16 * STEPS}
    for suffix in ([""] if not any(Path(cache).iterdir()) else []) + [".cached"]:
        seconds = []
        for _ in range(arguments.repeats if suffix else 1):
            with tempfile.TemporaryDirectory() as runs:
                train = ["train", "--population", str(num_agents), "--runs", runs, *options_of(settings)]
                seconds.append(time_command(train, cache, True))
        name = f"start.{CARTPOLE}.{num_agents}{suffix}"
        figures.add(name, statistics.median(seconds), "s", (CARTPOLE, *LAYERS), slowest=max(seconds))


def measure_pbt(figures: Figures, num_agents: int, arguments: Any) -> None:
    """Adds the time of a step of population-based training.

    Args:
        figures: where the row is added.
        num_agents: P.
        arguments: of the command line.
    """
    from benchmarks.tools.measure import synchronize
    from gpuvec.learners.population.population_args import PopulationArgs
    from gpuvec.learners.population.population_training import train_population
    from gpuvec.learners.population.search.population_based_training import Exploration, PBTArgs, PBTSchedule
    from gpuvec.learners.population.search.search_space import SearchParameter, sample_space, split_columns
    from gpuvec.learners.ppo import PPOArgs

    changes, interval = 20, 4
    settings = {**SETTINGS, "anneal_lr": False, "total_steps": (changes + 1) * interval * STEPS}
    base = PPOArgs(env=f"gpuvec/{CARTPOLE}", device=arguments.device, fused=default_fused(arguments.device), **settings)
    parameters = tuple(SearchParameter(*each) for each in RANGES)  # type: ignore[arg-type]  # of its types
    values = sample_space(parameters, num_agents, "sobol", 0)
    explore = Exploration(PBTArgs(base, parameters, num_agents, interval), PBTSchedule.initial(values))
    milliseconds = []

    def change(population: Any, results: Any) -> None:
        synchronize()
        start = time.perf_counter()
        explore(population, results)
        synchronize()
        milliseconds.append((time.perf_counter() - start) * 1e3)

    args = PopulationArgs(base, num_agents, (), *split_columns(values))
    train_population(args, change, iterations_per_launch=interval, while_training=explore.prepare)
    timed = milliseconds[1:-1]  # the first one allocates, and the last one changes nothing
    details = {"slowest": max(timed), "changes": len(timed)}
    figures.add(f"pbt.{CARTPOLE}.{num_agents}", statistics.median(timed), "ms", (CARTPOLE, *LAYERS), **details)


def measure_sweep(figures: Figures, env: str, cache: str, arguments: Any) -> None:
    """Adds the time of a search, and the return of the best settings on fresh seeds.

    Args:
        figures: where the rows are added.
        env: name of the environment.
        cache: the folder of kernels.
        arguments: of the command line.
    """
    settings = {name: value for name, value in SETTINGS.items() if name not in [each[0] for each in RANGES]}
    settings |= {"env": f"gpuvec/{env}", "device": arguments.device, "fused": default_fused(arguments.device)}
    options = [text for each in RANGES for text in ("--param", *map(str, each))]
    options += ["--trials", str(arguments.trials), "--total-steps", str(arguments.trial_steps), *options_of(settings)]
    with tempfile.TemporaryDirectory() as runs:
        seconds = time_command(["sweep", *options, "--runs", runs], cache, False)
        (path,) = Path(runs).iterdir()
        record = json.loads((path / "sweep.json").read_text())
    best = record["confirmations"][0]
    details = {name: best[name] for name in ("interquartile_mean", "low", "high")} | {"best": str(record["best"])}
    steps = [count for count in best["steps_to_threshold"] if count is not None]
    details |= {"reached": len(steps), "steps": statistics.median(steps), "most_steps": max(steps)} if steps else {"reached": 0}
    figures.add(f"sweep.{env}.{arguments.trials}", seconds, "s", (env, *LAYERS), trial_steps=arguments.trial_steps, **details)


def list_rows(figures: Figures, arguments: Any, cache: str) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Yields the part and the name of each row, and what measures it.

    Args:
        figures: where the rows are added.
        arguments: of the command line.
        cache: the folder of kernels.
    """
    agents, middle = arguments.agents, arguments.agents[len(arguments.agents) // 2]
    trainings = [("kernel", Training(CARTPOLE, n, arguments.iterations, arguments.launch, True)) for n in agents]
    of_kernel = Training(CARTPOLE, middle, arguments.iterations, arguments.launch, True)
    trainings += [("portable", of_kernel._replace(variant=variant)) for variant in arguments.variants]
    trainings += [("envs", Training(env, middle, arguments.short, arguments.short // 4, True)) for env in OTHERS]
    trainings += [("batched", Training(CARTPOLE, n, arguments.batched, 1, False)) for n in agents]
    for part, training in trainings:
        kind = (
            f"portable-{training.variant.replace('.', '')}" if training.variant else "kernel" if training.fused else "batched"
        )
        name = f"{kind}.{training.env}.{training.num_agents}"
        yield part, name, partial(measure_training, figures, name, training, arguments.device)
    for n in agents[1:] or agents:
        yield "start", f"start.{CARTPOLE}.{n}", partial(measure_start, figures, n, cache, arguments)
    yield "pbt", f"pbt.{CARTPOLE}.{middle}", partial(measure_pbt, figures, middle, arguments)
    for env in arguments.search_envs:
        yield "sweep", f"sweep.{env}.{arguments.trials}", partial(measure_sweep, figures, env, cache, arguments)


def main() -> None:
    """Measures each part."""
    parser = make_parser(__doc__)
    parts = ("kernel", "portable", "batched", "envs", "start", "pbt", "sweep")
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts, metavar="PART")
    parser.add_argument("--agents", nargs="*", type=int, default=[132, 2048, 16_384], metavar="P")
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS), help="of the portable kernel")
    parser.add_argument("--iterations", type=int, default=976, metavar="N", help="of the kernel on CartPole")
    parser.add_argument("--short", type=int, default=200, metavar="N", help="iterations on other environments")
    parser.add_argument("--batched", type=int, default=8, metavar="N", help="iterations of batched operations")
    parser.add_argument("--launch", type=int, default=61, metavar="N", help="iterations between two reads of the metrics")
    parser.add_argument("--search-envs", nargs="*", default=[CARTPOLE], metavar="NAME", help="environments of searches")
    parser.add_argument("--trials", type=int, default=4096)
    parser.add_argument("--trial-steps", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="processes for each row of `start` with a full cache")
    parser.add_argument("--limit", type=int, default=120, metavar="SECONDS", help="of each row, which fails after it")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    figures = Figures("population", arguments.json)
    with tempfile.TemporaryDirectory() as cache:
        for part, name, measure in list_rows(figures, arguments, cache):
            if part in arguments.parts:
                with figures.continue_after_failure(name), time_limit(arguments.limit):
                    measure()


if __name__ == "__main__":
    main()
