"""Steps per second of each environment with one agent, and the share of the memory's bandwidth that they use.

The method is that of `step_rate.py`. In NEXT_STEP the steps that only reset an env do not count.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, StepRate, make_parser, measure_bandwidth
from benchmarks.tools.step_rate import RING_SIZE, Protocol, measure_steps
from gpuvec import SingleAgentEnv
from gpuvec.registration import registered_envs

ENVS = tuple(name for name, env in registered_envs("gpuvec").items() if isinstance(env, SingleAgentEnv))
FULL = 1_048_576
STEPS_BEFORE = 400  # of each env, before the measurement
# Without these limits the cart moves until its 500 steps are over, whatever the pole does.
RARE_ENDS: dict[str, Any] = {"x_limit": 1e9, "theta_limit": 1e9}
VARIANTS: dict[str, dict[str, Any]] = {
    "same_step": {"autoreset_mode": "SameStep"},
    "next_step": {"autoreset_mode": "NextStep"},
    "same_step.validate": {"autoreset_mode": "SameStep", "validate": True},
    "same_step.rare_ends": {"autoreset_mode": "SameStep", **RARE_ENDS},
}
ENV_OF_VARIANT = {"same_step.rare_ends": "CartPole-v1"}  # variants that only one environment has
# All variants with the full number of envs; only the first with fewer envs, where the launch is the limit and not the memory.
CASES = [(FULL, variant) for variant in VARIANTS] + [(65_536, "same_step"), (4096, "same_step")]


def measure(
    name: str,
    num_envs: int,
    variant: str,
    bandwidth: float,
    device: str = "cuda",
    ring_size: int = RING_SIZE,
    backend: str = "numba",
) -> StepRate:
    """Returns the env steps per second.

    Args:
        name: of the environment.
        num_envs: E.
        variant: one of `VARIANTS`.
        bandwidth: of the memory, bytes per second.
        device: "cuda" or "cpu".
        ring_size: how many buffers of actions there are.
        backend: "numba" or "cuda-c", the language of the environment's functions.
    """
    options = {"backend": backend, **VARIANTS[variant]}
    return measure_steps(name, num_envs, options, bandwidth, device, Protocol(STEPS_BEFORE, ring_size, rounds=2))


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--envs", nargs="*", default=list(ENVS), metavar="NAME")
    parser.add_argument("--sizes", nargs="*", type=int, default=[FULL, 65_536, 4096], metavar="E")
    parser.add_argument("--ring", type=int, default=RING_SIZE, help="number of action buffers")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    figures = Figures("env_step", arguments.json)
    bandwidth = measure_bandwidth(arguments.device)
    figures.add("add", bandwidth / 1e12, "TB/s", ())
    for name in arguments.envs:
        for num_envs, variant in CASES:
            if num_envs not in arguments.sizes or name != ENV_OF_VARIANT.get(variant, name):
                continue
            case = f"{name}.{variant}.{num_envs}"
            with figures.continue_after_failure(case):
                rate = measure(name, num_envs, variant, bandwidth, arguments.device, arguments.ring)
                figures.add_steps(case, rate, name)


if __name__ == "__main__":
    main()
