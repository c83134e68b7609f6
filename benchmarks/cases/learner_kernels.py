"""The learners' own kernels on a GPU: sampling of actions from logits, and generalised advantage estimation.

Each is measured in a CUDA graph of 100 calls. The sampler is compared with torch's Categorical, which needs several kernels for
an action and its log-probability. The share of the roofline is that of the bytes which a kernel must move, at the bandwidth of
an addition from memory to memory in the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, graph_time, make_parser, measure_bandwidth

SOURCES = ("learners",)
CALLS = 100


def measure_sampler(figures: Figures, rows: int, num_actions: int, bandwidth: float) -> None:
    """Adds rows for our kernel, which computes action, log-probability and entropy, and for torch without the entropy.

    Args:
        figures: where the rows are added.
        rows: R, how many actions are sampled.
        num_actions: logits of a row.
        bandwidth: of the memory, bytes per second.
    """
    import torch

    from gpuvec.learners.sampling.sampler import Sampler

    logits = torch.randn(rows, num_actions, device="cuda")
    sampler, iteration = Sampler("cuda:0", 0), torch.zeros((), dtype=torch.int64, device="cuda")
    out = sampler.categorical(logits, iteration, 0)

    def sample_by_kernel() -> None:
        for step in range(CALLS):
            sampler.categorical(logits, iteration, step, out=out)

    def sample_by_torch() -> None:
        for _ in range(CALLS // 10):
            policy = torch.distributions.Categorical(logits=logits, validate_args=False)
            out.log_prob.copy_(policy.log_prob(policy.sample()))

    timing = graph_time(sample_by_kernel, CALLS)
    moved = sum(x.nbytes for x in (logits, *out))
    percent = 100.0 * moved / (timing.median * 1e-6) / bandwidth
    name = f"{rows}x{num_actions}"
    figures.add(f"sampler.{name}", timing.median, "us", SOURCES, spread=timing.spread, MB=moved / 1e6)
    figures.add(f"sampler.{name}.share", percent, "% of add", SOURCES)
    torch_timing = graph_time(sample_by_torch, CALLS // 10)
    figures.add(f"torch.{name}", torch_timing.median, "us", (), spread=torch_timing.spread)


def measure_advantages(figures: Figures, steps: int, rows: int, bandwidth: float) -> None:
    """Adds rows for the advantages and targets of a rollout.

    Args:
        figures: where the rows are added.
        steps: T.
        rows: R, the envs of the rollout.
        bandwidth: of the memory, bytes per second.
    """
    import torch

    from gpuvec.learners.estimators.advantage import AdvantageEstimator

    value = torch.randn(steps + 1, rows, device="cuda")
    reward, final_value, *out = torch.randn(4, steps, rows, device="cuda")
    ended = torch.rand(steps, rows, device="cuda") < 0.05
    tensors: Any = (reward, value, final_value, ended & (reward > 0), ended)
    estimator = AdvantageEstimator("cuda:0", 0.99, 0.95)

    def estimate() -> None:
        for _ in range(CALLS):
            estimator(*tensors, (out[0], out[1]))

    timing = graph_time(estimate, CALLS)
    moved = sum(x.nbytes for x in (*tensors, *out))
    percent = 100.0 * moved / (timing.median * 1e-6) / bandwidth
    figures.add(f"advantage.{steps}x{rows}", timing.median, "us", SOURCES, spread=timing.spread, MB=moved / 1e6)
    figures.add(f"advantage.{steps}x{rows}.share", percent, "% of add", SOURCES)


def main() -> None:
    """Measures all cases."""
    arguments = make_parser(__doc__).parse_args()
    figures = Figures("learner_kernels", arguments.json)
    bandwidth = measure_bandwidth()
    for rows in (10_000, 1_000_000):
        with figures.continue_after_failure(f"sampler.{rows}x5"):
            measure_sampler(figures, rows, 5, bandwidth)
    for steps, rows in ((128, 4096), (32, 65_536)):
        with figures.continue_after_failure(f"advantage.{steps}x{rows}"):
            measure_advantages(figures, steps, rows, bandwidth)


if __name__ == "__main__":
    main()
