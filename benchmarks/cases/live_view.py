"""Env steps per second of trainings that save live replays, compared with the same trainings without them.

A training runs as `train` runs it. In periods of some seconds in turn it does and does not call what `gpuvec train --watch`
calls after each iteration, so that both have the same clock rates and the same neighbours on the machine. The process that
records replays waits in the periods without. `cost` is the median share of the throughput that the replays take, and
`cost_at_30_s` what follows for one replay every 30 seconds: a replay costs the training a fixed time.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, require_gpu

DEFAULT_SECONDS = 30.0  # between two replays, in the documentation


class Case(NamedTuple):
    """What is trained."""

    name: str
    env: str
    settings: dict[str, Any]


CASES = (
    Case("CartPole-v1.4096", "CartPole-v1", {"num_envs": 4096, "num_steps": 32}),
    Case("CartPole-v1.65536", "CartPole-v1", {"num_envs": 65_536, "num_steps": 32}),
    Case("Breakout-v0.4096", "Breakout-v0", {"num_envs": 4096, "num_steps": 32, "hidden": (128,), "activation": "relu"}),
    Case("TagContinuous-v0.2000x5", "TagContinuous-v0", {"num_envs": 2000, "num_steps": 32}),
)


class Done(Exception):
    """All periods were measured."""


class Periods:
    """Measures a training in periods with and without live replays: the `on_iteration` of `train`.

    Args:
        run: a folder for the replays.
        seconds: between two replays.
        period: the length of a period. [s]
        num_pairs: of periods with and without.
    """

    def __init__(self, run: Path, seconds: float, period: float, num_pairs: int) -> None:
        self._run, self._seconds, self._period, self._num_periods = run, seconds, period, 2 * num_pairs
        self._live: Any = None
        self._begin = self._count = 0.0
        self._problem = ""
        self.rates: list[float] = []
        """Iterations per second of each period; those with odd indices have live replays."""

    def __call__(self, learner: Any, metrics: dict[str, float]) -> None:
        """Counts an iteration, and saves a replay if one is due in this period."""
        from gpuvec.replay.live.process import LiveReplays, LiveSettings

        if self._live is None:
            self._live = LiveReplays(self._run, learner, LiveSettings(self._seconds, 4), self._fail)
            self._warm_up()
        if len(self.rates) % 2:
            self._update()
        now = time.perf_counter()
        if not self._begin:
            self._begin, self._count = now, 0
            return
        self._count += 1
        if now - self._begin >= self._period:
            self.rates.append(self._count / (now - self._begin))
            self._begin = 0.0
            if len(self.rates) == self._num_periods:
                raise Done

    def _warm_up(self) -> None:
        """Waits for the first replay, before which the process loads PyTorch and compiles the environment."""
        while not list(self._run.glob("live-*.html")):
            self._update()
            time.sleep(0.05)

    def _update(self) -> None:
        self._live.update()
        if self._problem:
            raise RuntimeError(self._problem)

    def _fail(self, problem: str) -> None:
        self._problem = problem  # another thread calls this

    def close(self) -> None:
        """Ends the process that records."""
        if self._live is not None:
            self._live.close()


def measure(figures: Figures, case: Case, device: str, periods: Periods, seconds: float) -> None:
    """Adds the row of a case.

    Args:
        figures: where the row is added.
        case: what is trained.
        device: "cuda" or "cpu".
        periods: that measure it.
        seconds: between two replays.
    """
    import gpuvec  # noqa: F401  # registers the environments
    from gpuvec.learners.ppo import PPOArgs
    from gpuvec.learners.training import train

    args = PPOArgs(env=f"gpuvec/{case.env}", device=device, total_steps=10**15, **case.settings)
    try:
        train(args, periods, exact_at=lambda iteration: False)
    except Done:
        pass
    finally:
        periods.close()
    pairs = list(zip(periods.rates[::2], periods.rates[1::2], strict=True))
    costs = [1.0 - live / alone for alone, live in pairs]
    cost = statistics.median(costs)
    for name, rates in (("alone", periods.rates[::2]), ("live", periods.rates[1::2])):
        rate = statistics.median(rates) * args.steps_per_iteration / 1e6
        figures.add(f"{case.name}.{name}", rate, "M steps/s", (case.env, "vector", "learners"))
    details = {"lowest": min(costs), "highest": max(costs), "cost_at_30_s": cost * seconds / DEFAULT_SECONDS}
    figures.add(f"{case.name}.cost", cost, "", (case.env, "vector", "learners"), seconds=seconds, **details)


def select(names: list[str] | None) -> Iterator[Case]:
    """Yields the cases with the names, or all."""
    yield from (case for case in CASES if not names or case.name in names)


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    # Otherwise the process would compile the environment for each replay.
    del os.environ["GPUVEC_CACHE"]
    parser.add_argument("--cases", nargs="*", metavar="NAME", help="cases with these names")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=2.0, help="between two replays")
    parser.add_argument("--period", type=float, default=4.0, help="seconds of a period with or without replays")
    parser.add_argument("--pairs", type=int, default=7, help="pairs of periods")
    options = parser.parse_args()
    if options.device == "cuda":
        require_gpu()
    figures = Figures("live_view", options.json)
    for case in select(options.cases):
        with tempfile.TemporaryDirectory() as folder:
            periods = Periods(Path(folder), options.seconds, options.period, options.pairs)
            with figures.continue_after_failure(case.name):
                measure(figures, case, options.device, periods, options.seconds)


if __name__ == "__main__":
    main()
