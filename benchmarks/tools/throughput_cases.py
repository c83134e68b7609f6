"""The trainings of the throughput model: what an iteration of each exchanges between its processes.

The number of exchanges and their sizes depend on neither device nor number of environments, so they are counted in an
iteration of the same training with four environments on the CPU. Fused kernels, which need a GPU, exchange the same gradients
through inboxes; the moments of all minibatches, the totals of the rollout and the rows of faults are three exchanges more
(design/0053).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any, NamedTuple

from benchmarks.tools.throughput_model import Exchange

FUSED_OTHERS = (Exchange(392), Exchange(128), Exchange(32))  # of fused PPO besides the gradients, for 16 minibatches
ENDLESS = 2**62  # steps
# {case of the benchmark `learners`: how a reader knows it}.
CASES = {
    "ppo.4096": "PPO, CartPole, fused kernels",
    "ppo.16384": "PPO, CartPole, fused kernels",
    "ppo.65536": "PPO, CartPole, fused kernels",
    "ppo.65536.torch": "PPO, CartPole, PyTorch operations",
    "ppo.breakout.4096": "PPO, Breakout, convolution",
    "a2c.cartpole.10000": "A2C, CartPole",
    "a2c.grid.2000x5": "A2C, TagGridWorld",
    "a2c.open.2000x5": "A2C, TagContinuous, two policies",
    "a2c.open.2000x110": "A2C, TagContinuous, two policies",
    "ddpg.pendulum.10000": "DDPG, Pendulum",
}


class Case(NamedTuple):
    """A training, and what it exchanges."""

    name: str  # in the benchmark `learners`
    num_envs: int
    num_agents: int
    num_steps: int
    num_parameters: int
    exchanges: tuple[Exchange, ...]


def describe_cases(names: Sequence[str] = tuple(CASES)) -> Iterator[Case]:
    """Yields the cases, in the order of the names.

    Args:
        names: of the benchmark `learners`.
    """
    from benchmarks.cases.learners import list_cases

    cases = {case.name: case for case in list_cases()}
    for name in names:
        case = cases[name]
        policies = case.policies if isinstance(case.policies, dict) else {"all": case.policies}
        args = next(iter(policies.values()))
        small = {role: _small(each, f"gpuvec/{case.env}") for role, each in policies.items()}
        num_agents, num_parameters, sizes = _run_once(small)
        exchanges = tuple(map(Exchange, sizes))
        if "fused" in CASES[name]:
            exchanges = *(Exchange(size, has_inboxes=True) for size in sizes if size >= 4 * num_parameters), *FUSED_OTHERS
        yield Case(name, args.num_envs, num_agents, args.num_steps, num_parameters, exchanges)


def _small(args: Any, env: str) -> Any:
    """Returns settings of the same training with a few environments on the CPU."""
    sizes = {"total_steps": ENDLESS, "num_envs": 4, "batch_size": 8, "buffer_size": 800, "fused": False, "precision": "tf32"}
    names = {field.name for field in fields(args)}
    return replace(args, env=env, device="cpu", **{name: value for name, value in sizes.items() if name in names})


def _run_once(policies: Mapping[str, Any]) -> tuple[int, int, tuple[int, ...]]:
    """Runs one iteration in two shards; returns the number of agents, of parameters, and the bytes of each exchange."""
    from benchmarks.tools.multi_gpu_worker import MeasuredProcesses
    from gpuvec.learners.training import open_learner

    processes = MeasuredProcesses()
    with ExitStack() as stack:
        learner = stack.enter_context(open_learner(policies, None, 2, processes))
        processes.recorder.is_on = True
        learner.iterate()
        networks = [policy.network for policy in learner.policies.values() if policy.network is not None]
        num_parameters = sum(p.numel() for network in networks for p in network.parameters())
        exchanges = tuple(parts[0].nbytes for parts, _ in processes.recorder.requests)
        return learner.rollout.num_agents or 1, num_parameters, exchanges
