"""The command `gpuvec check`."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import tyro

from gpuvec.cli.env_lookup import complete_env_id
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.wrong_options import require_positive
from gpuvec.errors import AuthoringError, GpuvecError
from gpuvec.registration import find_env_spec
from gpuvec.spec import SingleAgentEnv

if TYPE_CHECKING:
    from gpuvec.testing.target_check.target_comparison import ComparisonJob, ComparisonReport

DEFAULT_EPISODE_STEPS = 1000  # the step limit in the comparison for an environment that has none
COMPARE_SECONDS = 600.0  # of a target; all bundled environments need less than a minute on a machine with a GPU


def check(
    env: Annotated[str, tyro.conf.Positional],
    targets: str = "",
    num_envs: int | None = None,
    episodes: int | None = None,
    max_episode_steps: int | None = None,
    seed: int = 0,
    time_limit: float = 20.0,
    replay_seconds: float = 1.0,
    compare_seconds: float = COMPARE_SECONDS,
    params: dict[str, bool | int | float] | None = None,
) -> int:
    """Check that an environment follows the rules of device code and has the same results on every target.

    First `gpuvec.testing.check_env` checks the code. Then each target and the CPU step with the same random actions, in every
    autoreset mode, and all outputs and states are compared after every call. The exit status is 0 if all agree, 1 for a
    difference or a broken rule, and 2 if the check cannot run or does not end in its time.

    Args:
        env: the id of the environment, such as CartPole-v1. With module:id, the module is imported first.
        targets: names, separated by commas: cpu, cuda-c-cpu (the environment's functions in CUDA C++, compiled by the host's
            C++ compiler), sim (Numba's CUDA simulator), numba (a GPU), cuda-c (a GPU, with the functions in CUDA C++). By
            default all that this machine has. Each is compared with cpu.
        num_envs: the number of environments. By default as many as have 4096 agents in total, in the simulator 33, and 16 of
            an environment with many agents.
        episodes: the number of episodes of each environment, in each autoreset mode. By default 3, in the simulator 2.
        max_episode_steps: the step limit of an episode. By default that of the environment, in the simulator 3.
        seed: the seed of the environments and of the actions.
        time_limit: the CPU seconds of one call of a function of the environment, or of one compiled step of all environments,
            after which it counts as an endless loop; in the simulator 100 times as many.
        replay_seconds: the CPU seconds for which plain Python repeats further steps of the compiled episodes, after a selection
            of rare and random ones. A longer time finds rarer faults.
        compare_seconds: the seconds after which the comparison with a target stops. What was not compared is reported.
        params: parameters of the environment that differ from its defaults, such as --params gravity 3.7.
    """
    from gpuvec.testing.environment_check import check_env, require_seconds, resolve
    from gpuvec.testing.target_check.target_comparison import ComparisonJob, compare_in_processes
    from gpuvec.testing.target_check.targets import select_targets

    own_params: dict[str, Any] = params or {}
    try:
        require_positive(num_envs=num_envs, episodes=episodes, max_episode_steps=max_episode_steps)
        require_seconds(time_limit, replay_seconds)
        if not compare_seconds > 0:
            raise ValueError(f"compare_seconds must be greater than 0, got {compare_seconds}.")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be from 0 to 2**64 - 1, got {seed}.")
        env = complete_env_id(env, "check")
        spec = find_env_spec(env)
        declaration = resolve(spec.id, own_params)
        selected, unavailable = select_targets([name for name in targets.split(",") if name], declaration)
    except (GpuvecError, gym.error.Error, ImportError, TypeError, ValueError) as error:
        print_lines(*f"gpuvec check: {error}".splitlines(), is_error=True)
        return 2
    try:
        print_lines(f"rules        compiling and running {spec.id} ...")
        check_env(
            spec.id, seed=seed, time_limit=time_limit, replay_seconds=replay_seconds, **own_params,
            progress=lambda each: print_lines(
                *f"{each.name:<12} {'ok   ' if each.ran else 'not run:'} {each.detail}".splitlines()
            ),
        )  # fmt: skip
    except AuthoringError as error:
        print_lines(*f"rules        FAIL  {error}".splitlines())
        return 1
    for name, reason in unavailable.items():
        print_lines(f"{name:<12} skipped: {reason}")
    module, colon, _ = env.rpartition(":")
    reports = []
    for target in selected:
        if isinstance(declaration, SingleAgentEnv):
            default_num_envs = target.num_agents
        else:
            default_num_envs = max(1, target.num_agents_multi // declaration.agents(declaration.params))
        job = ComparisonJob(
            env=f"{module}{colon}{spec.id}", target=target.name, options=target.options, variables=target.variables,
            num_envs=num_envs or default_num_envs, episodes=episodes or target.episodes,
            max_episode_steps=max_episode_steps or target.max_episode_steps or spec.max_episode_steps or DEFAULT_EPISODE_STEPS,
            seed=seed, params=own_params, time_limit=time_limit * target.slowdown, compare_seconds=compare_seconds,
        )  # fmt: skip
        print_lines(f"{target.name:<12} running {job.num_envs} environments in {len(job.modes)} autoreset modes ...")
        reports.append(report := compare_in_processes(job, os.cpu_count() or 1))
        print_lines(*f"{target.name:<12} {_describe_report(job, report)}".splitlines())
    if any(report.difference for report in reports):
        return 1
    return 2 if any(report.unfinished for report in reports) else 0


def _describe_report(job: ComparisonJob, report: ComparisonReport) -> str:
    """A line for a target that agrees with the CPU; otherwise several, with a script that reproduces the difference."""
    if report.difference:
        script = f"\nTo reproduce it:\n\n{textwrap.indent(report.script, '    ')}" if report.script else ""
        return f"FAIL  {report.difference}{script}"
    agreement = "bit-identical to cpu" if report.identical else "equal to cpu, floats to 1e-5"
    count = report.num_sensitive
    exceptions = f", except {count} that are sensitive to rounding, where both results are right" if count else ""
    runs = f"{job.num_envs} environments in {len(job.modes)} autoreset modes"
    results = f"{report.num_results:,} results of {runs}: {agreement}{exceptions}"
    if not report.unfinished:
        return f"ok    {results}"
    remedy = "raise --compare-seconds, or lower --num-envs, --episodes or --max-episode-steps"
    return f"NOT FINISHED within {job.compare_seconds:g} s: {report.unfinished}; {remedy}\n{'':<12} so far {results}"
