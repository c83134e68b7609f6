"""The learners' own kernels on a GPU: actions drawn from logits, and generalised advantages.

Each in a CUDA graph of 100 calls, one after the other. Beside the sampler stands torch's Categorical, which takes several
kernels for an action and its log-probability; the share of the roofline is that of the bytes which have to move, at the
rate of an addition from memory to memory in the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, graph_time, make_parser, measure_bandwidth

OF = ("learners",)
CALLS = 100


def sampler(figures: Figures, rows: int, logits: int, ceiling: float) -> None:
    """Action, log-probability and entropy by one kernel; action and log-probability by torch."""
    import torch

    from gpuvec.learners.sampling.sampler import Sampler

    scores = torch.randn(rows, logits, device="cuda")
    draws, iteration = Sampler("cuda:0", 0), torch.zeros((), dtype=torch.int64, device="cuda")
    out = draws.categorical(scores, iteration, 0)

    def ours() -> None:
        for step in range(CALLS):
            draws.categorical(scores, iteration, step, out=out)

    def oracle() -> None:
        for _ in range(CALLS // 10):
            policy = torch.distributions.Categorical(logits=scores, validate_args=False)
            out.log_prob.copy_(policy.log_prob(policy.sample()))

    took = graph_time(ours, CALLS)
    moved = sum(x.nbytes for x in (scores, *out))
    share = 100.0 * moved / (took.median * 1e-6) / ceiling
    figures.add(f"sampler.{rows}x{logits}", took.median, "us", OF, spread=took.spread, MB=moved / 1e6)
    figures.add(f"sampler.{rows}x{logits}.share", share, "% of add", OF)
    theirs = graph_time(oracle, CALLS // 10)
    figures.add(f"torch.{rows}x{logits}", theirs.median, "us", (), spread=theirs.spread)


def advantage(figures: Figures, steps: int, rows: int, ceiling: float) -> None:
    """Advantages and targets of a rollout."""
    import torch

    from gpuvec.learners.estimators.advantage import AdvantageEstimator

    value = torch.randn(steps + 1, rows, device="cuda")
    reward, final, *out = torch.randn(4, steps, rows, device="cuda")
    ended = torch.rand(steps, rows, device="cuda") < 0.05
    tensors: Any = (reward, value, final, ended & (reward > 0), ended)
    estimate = AdvantageEstimator("cuda:0", 0.99, 0.95)

    def ours() -> None:
        for _ in range(CALLS):
            estimate(*tensors, (out[0], out[1]))

    took = graph_time(ours, CALLS)
    moved = sum(x.nbytes for x in (*tensors, *out))
    share = 100.0 * moved / (took.median * 1e-6) / ceiling
    figures.add(f"advantage.{steps}x{rows}", took.median, "us", OF, spread=took.spread, MB=moved / 1e6)
    figures.add(f"advantage.{steps}x{rows}.share", share, "% of add", OF)


def main() -> None:
    """Measures all cases."""
    given = make_parser(__doc__).parse_args()
    figures = Figures("learner_kernels", given.json)
    ceiling = measure_bandwidth()
    for rows in (10_000, 1_000_000):
        try:
            sampler(figures, rows, 5, ceiling)
        except Exception as error:  # noqa: BLE001  # one row that fails must not cost the others
            figures.add_failure(f"sampler.{rows}x5", error)
    for steps, rows in ((128, 4096), (32, 65_536)):
        try:
            advantage(figures, steps, rows, ceiling)
        except Exception as error:  # noqa: BLE001  # likewise
            figures.add_failure(f"advantage.{steps}x{rows}", error)


if __name__ == "__main__":
    main()
