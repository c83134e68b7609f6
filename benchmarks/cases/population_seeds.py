"""Agents that the kernel for populations trains, beside single trainings with the same seeds and settings.

The settings are those of `population.py`, with 500 k steps of each agent. Pendulum, which learns nothing with them, has four
settings of its own. A path is what trains:

    kernel   one kernel on a GPU, whose blocks are agents
    batched  batched operations, whose agents equal single trainings: tests/learners/test_population.py compares the parameters
             of agents with those of the ordinary learner that has the same orders of samples, to 1e-6
    single   the ordinary learner, one seed after the other, with its own orders of samples

`--save` writes the returns of a path to a folder. Those of `batched` on a CPU are in benchmarks/results, and another path is
compared with them. A row is the interquartile mean over seeds of the return in the last tenth of the iterations, with its
bootstrap interval, and has the mean curve in its details. The difference from the reference is that by seed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.cases.population import LAYERS, SETTINGS, STEPS
from benchmarks.tools.measure import Figures, make_parser

POINTS = 16  # of a mean curve
RESULTS, REFERENCE_PATH = Path(__file__).resolve().parents[1] / "results", "batched"
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"learning_rate": 1e-3, "gamma": 0.9, "ent_coef": 0.0, "reward_scale": 0.125},
}
"""The settings of an environment that differ from those of `population.py`."""


class Returns(NamedTuple):
    """The returns of S seeds on a path."""

    final: NDArray[np.float64]  # (S,): at the end of the training
    curve: NDArray[np.float64]  # (POINTS, S): at equal distances up to the end

    def write(self, file: Path) -> None:
        """Writes them to a file of comma-separated values, with a row for each seed."""
        header = ",".join(["final", *(f"at_{k}_of_{POINTS}" for k in range(1, POINTS + 1))])
        np.savetxt(file, np.column_stack([self.final, self.curve.T]), "%.7g", ",", header=header, comments="")

    @classmethod
    def read(cls, file: Path, seeds: int) -> Returns:
        """Reads those of the first `seeds` seeds from a file that `write` wrote."""
        rows = np.loadtxt(file, delimiter=",", skiprows=1)[:seeds]
        return cls(rows[:, 0], rows[:, 1:].T)


def train_agents(args: Any, seeds: int) -> Any:
    """Returns the history of all seeds, which are trained as one population.

    Args:
        args: the settings, PPOArgs.
        seeds: S.
    """
    from gpuvec.learners.population.population_args import PopulationArgs
    from gpuvec.learners.population.population_training import train_population

    return train_population(PopulationArgs(args, seeds)).history


def train_singles(args: Any, seeds: int) -> Any:
    """Returns the history of all seeds, which the ordinary learner trains one after the other.

    Args:
        args: the settings, PPOArgs.
        seeds: S.
    """
    from gpuvec.learners.population.population_args import RUNNING
    from gpuvec.learners.population.results.population_history import PopulationHistory
    from gpuvec.learners.training import train

    histories, start = [], time.perf_counter()
    for seed in range(args.seed, args.seed + seeds):
        histories.append(train(replace(args, seed=seed)).history)
        print(f"seed {seed}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    iterations = len(histories[0])
    metrics = {
        name: np.array([[row.get(name, np.nan) for row in history] for history in histories], np.float32).T
        for name in ("return", "last_return")
    }
    seconds = np.linspace(0.0, time.perf_counter() - start, iterations + 1)[1:]
    counts = np.zeros(seeds, np.int64)
    return PopulationHistory(
        STEPS * (1 + np.arange(iterations)), seconds, metrics, args.seed + np.arange(seeds), {}, {}, counts + RUNNING, counts
    )


def mean_of_last_tenth(history: Any) -> NDArray[np.float64]:
    """Returns the mean of `return` over the last tenth of the iterations, (S,), nan for agents that were stopped.

    It compares paths that train the same seeds, and does not say how good a policy is.

    Args:
        history: that of the seeds.
    """
    returns = history.metrics["return"].astype(np.float64)
    return np.where(history.stopped_at >= 0, np.nan, np.nanmean(returns[int(0.9 * len(returns)) :], 0))


def add_returns(figures: Figures, name: str, env: str, returns: Returns, **details: Any) -> None:
    """Adds the returns of a path.

    Args:
        figures: where the row is added.
        name: of the row.
        env: name of the environment.
        returns: those of the path.
        details: further details.
    """
    from gpuvec.learners.runs.comparison import estimate

    value, low, high = estimate(returns.final)
    points = str([round(float(row), 1) for row in returns.curve.mean(1)])
    spread = {"low": low, "high": high, "worst": float(returns.final.min()), "best": float(returns.final.max())}
    figures.add(name, value, "return", (env, *LAYERS), **spread, curve=points, **details)


def add_difference(figures: Figures, name: str, env: str, path: Returns, reference: Returns) -> None:
    """Adds the difference between two paths, and the largest one between their mean curves in standard errors.

    Args:
        figures: where the row is added.
        name: of the row.
        env: name of the environment.
        path, reference: the returns of the same seeds.
    """
    from gpuvec.learners.runs.comparison import estimate

    value, low, high = estimate(path.final - reference.final)
    gap = path.curve.mean(1) - reference.curve.mean(1)
    error = np.sqrt((path.curve.var(1, ddof=1) + reference.curve.var(1, ddof=1)) / len(path.final))
    largest = int(np.nanargmax(np.abs(gap) / np.maximum(error, 1e-9)))
    details = {"low": low, "high": high, "curve_gap": float(gap[largest]), "curve_error": float(error[largest])}
    figures.add(name, value, "return", (env, *LAYERS), **details)


def measure(figures: Figures, env: str, arguments: Any) -> None:
    """Trains all seeds in an environment, and adds the rows.

    Args:
        figures: where the rows are added.
        env: name of the environment.
        arguments: of the command line.
    """
    from gpuvec.learners.ppo import PPOArgs

    device = "cuda" if arguments.path == "kernel" else arguments.device
    steps = arguments.iterations * STEPS
    settings = {**SETTINGS, **OWN_SETTINGS.get(env, {}), "total_steps": steps, "fused": arguments.path == "kernel"}
    args = PPOArgs(env=f"gpuvec/{env}", device=device, **settings)
    trainer: Callable[[Any, int], Any] = train_singles if arguments.path == "single" else train_agents
    history = trainer(args, arguments.seeds)
    last = np.linspace(0, arguments.iterations, POINTS + 1).astype(int)[1:] - 1
    returns = history.metrics["last_return"][last].astype(np.float64)
    path, prefix = Returns(mean_of_last_tenth(history), returns), f"{env}.{arguments.seeds}"
    details = {"seconds": float(history.seconds[-1]), "iterations": arguments.iterations}
    add_returns(figures, f"{prefix}.{arguments.path}", env, path, **details)
    if arguments.save is not None:
        path.write(file_of(arguments.save, env, arguments.path))
    if arguments.path != REFERENCE_PATH:
        reference = Returns.read(file_of(arguments.reference, env, REFERENCE_PATH), arguments.seeds)
        add_returns(figures, f"{prefix}.{REFERENCE_PATH}", env, reference)
        add_difference(figures, f"{prefix}.difference", env, path, reference)


def file_of(folder: Path, env: str, path: str) -> Path:
    """Returns the file of the returns of a path in an environment.

    Args:
        folder: the folder of `--save`.
        env: name of the environment.
        path: the name of the path.
    """
    return folder / f"population_seeds_{env.partition('-')[0].lower()}_{path}.csv"


def main() -> None:
    """Trains on one path, and compares it with another one."""
    parser = make_parser(__doc__)
    paths = ("kernel", "batched", "single")
    parser.add_argument("--path", choices=paths, default="kernel")
    parser.add_argument("--envs", nargs="*", default=["Acrobot-v1", "Pendulum-v1"], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=64, metavar="S")
    parser.add_argument("--iterations", type=int, default=976, metavar="N")
    parser.add_argument("--device", default="cpu", help="of the paths other than the kernel")
    parser.add_argument(
        "--save", type=Path, metavar="FOLDER", help="where the returns are written, a file for each environment"
    )
    parser.add_argument("--reference", type=Path, default=RESULTS, metavar="FOLDER", help="a folder that --save wrote")
    arguments = parser.parse_args()
    figures = Figures("population_seeds", arguments.json)
    for env in arguments.envs:
        with figures.continue_after_failure(f"{env}.{arguments.seeds}.{arguments.path}"):
            measure(figures, env, arguments)


if __name__ == "__main__":
    main()
