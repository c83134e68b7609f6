"""WarpDrive with its Numba backend: steps of its environments, and A2C of its trainer. Each case has its own process.

    step      the step kernel and the reset kernels in every step, with fixed actions
    sampled   the sampler, then the same
    trainer   the sampler, the step kernel, and the reset kernels only if a flag on the host says that an environment is done
    a2c       a whole iteration of the trainer
    a2c.free  the same without the three synchronizations in each step that the trainer needs for its statistics

A step counts once for an environment with all its agents. Settings are those of WarpDrive's run configurations, with E, T and
sizes as in `CASES`. WarpDrive restores observations from a fixed copy, or from a pool, and returns no final observations.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, wall_time


class Case(NamedTuple):
    """What is measured.

    Attributes:
        config: the name of WarpDrive's run configuration.
        num_envs: E.
        num_steps: T, steps of a rollout. The trainer needs at least 2; iterations are measured if there are more.
        env: the settings of the environment that differ from the configuration.
        h200: {mode: M env steps/s} on one H200, rl_warp_drive 2.7.1.
    """

    config: str
    num_envs: int
    num_steps: int
    env: dict[str, Any]
    h200: dict[str, float]


CASES = {
    "grid.2000x5": Case(
        "tag_gridworld", 2000, 100, {}, {"step": 10.0, "sampled": 7.3, "trainer": 12.9, "a2c": 2.47, "a2c.free": 2.98}
    ),
    "grid.2000x1000.partial": Case(
        "tag_gridworld", 2000, 2, {"num_taggers": 999, "use_full_observation": False},
        {"step": 3.72, "sampled": 3.24, "trainer": 2.91},
    ),
    "open.2000x110.nearest10": Case(
        "tag_continuous", 2000, 20, {}, {"step": 0.74, "sampled": 1.87, "trainer": 2.53, "a2c": 0.14}
    ),
    "CartPole-v1.10000": Case(
        "single_cartpole", 10_000, 50, {}, {"step": 68.5, "sampled": 47.0, "trainer": 39.0, "a2c": 8.6, "a2c.free": 8.7}
    ),
    "CartPole-v1.100000": Case("single_cartpole", 100_000, 2, {}, {"step": 401.0, "sampled": 320.0, "trainer": 257.0}),
    "Acrobot-v1.10000": Case("single_acrobot", 10_000, 2, {}, {"step": 75.0, "sampled": 51.0, "trainer": 55.0}),
}  # fmt: skip


def make_env(config: str, settings: dict[str, Any]) -> Any:
    """Returns WarpDrive's environment of the run configuration `config`, with these `settings`."""
    if config == "tag_gridworld":
        from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorld as Env
    elif config == "tag_continuous":
        from example_envs.tag_continuous.tag_continuous import TagContinuous as Env
    elif config == "single_cartpole":
        from example_envs.single_agent.classic_control.cartpole.cartpole import CUDAClassicControlCartPoleEnv as Env
    else:
        from example_envs.single_agent.classic_control.acrobot.acrobot import CUDAClassicControlAcrobotEnv as Env
    return Env(**settings)


def make_trainer(case: Case, folder: str) -> Any:
    """Returns WarpDrive's trainer, with its environments.

    Args:
        case: what is measured.
        folder: where the trainer writes its files.
    """
    import warp_drive
    import yaml
    from warp_drive.env_wrapper import EnvWrapper
    from warp_drive.training.trainers.trainer_a2c import TrainerA2C

    config = yaml.safe_load((Path(warp_drive.__file__).parent / f"training/run_configs/{case.config}.yaml").read_text())
    config["env"] |= case.env
    config["trainer"] |= {"num_envs": case.num_envs, "train_batch_size": case.num_envs * case.num_steps, "seed": 0}
    config["trainer"]["num_episodes"] = case.num_envs * case.num_steps
    config["saving"] |= {"basedir": folder, "metrics_log_freq": 10**9, "model_params_save_freq": 10**9}
    envs = EnvWrapper(make_env(case.config, config["env"]), num_envs=case.num_envs, env_backend="numba")
    roles = {"tagger": "taggers", "runner": "runners"}
    if "shared" in config["policy"]:
        agents = [*envs.env.taggers, *envs.env.runners] if case.config.startswith("tag_") else list(envs.env.agents)
        policies = {"shared": agents}
    else:
        policies = {policy: list(getattr(envs.env, roles[policy])) for policy in config["policy"]}
    return TrainerA2C(envs, config, policies, verbose=False)


class UnmeasuredEvent:
    """A CUDA event that measures nothing."""

    def record(self) -> None:
        """Does nothing."""

    def elapsed_time(self, end: object) -> float:
        """Returns 0, whatever `end` is."""
        return 0.0


def make_modes(trainer: Any, case: Case) -> dict[str, Callable[[], object]]:
    """Returns {mode: call} of a step or of an iteration of the `trainer` of a `case`."""
    import torch

    envs = trainer.cuda_envs
    space = envs.env.action_space[0]
    counts = [int(space.n)] if hasattr(space, "n") else [int(n) for n in space.nvec]
    shape = (case.num_envs, envs.n_agents)
    uniform = [torch.full((*shape, n), 1.0 / n).cuda() for n in counts]
    done = envs.cuda_data_manager.data_on_device_via_torch("_done_")

    def step() -> None:
        envs.step_all_envs()
        envs.reset_only_done_envs()

    def step_with_sampler() -> None:
        trainer._sample_actions_helper(uniform)
        step()

    def step_as_trainer() -> None:
        trainer._sample_actions_helper(uniform)
        envs.step_all_envs()
        if done.any():
            envs.reset_only_done_envs()

    def iterate() -> None:
        trainer._generate_rollout_batch()
        trainer._update_model_params(1)

    def iterate_without_synchronization() -> None:
        with mock.patch.multiple(torch.cuda, synchronize=lambda: None, Event=lambda **_: UnmeasuredEvent()):
            iterate()

    steps: dict[str, Callable[[], object]] = {"step": step, "sampled": step_with_sampler, "trainer": step_as_trainer}
    iterations = {"a2c": iterate, "a2c.free": iterate_without_synchronization}
    return steps | (iterations if case.num_steps > 2 else {})


def measure(figures: Figures, name: str, case: Case, calls: int) -> None:
    """Adds a row for each mode of a case.

    Args:
        figures: where the rows are added.
        name: of the case.
        case: what is measured.
        calls: how many steps a repetition has.
    """
    import torch

    torch.set_float32_matmul_precision("high")  # TF32, as our learners
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(case, folder)
        for mode, call in make_modes(trainer, case).items():
            steps, repeated_calls = (case.num_steps, max(1, calls // 40)) if mode.startswith("a2c") else (1, calls)
            timing = wall_time(call, lambda _: torch.cuda.synchronize(), repeated_calls, repeats=3)
            rate = case.num_envs * steps / timing.median
            details = {"us": timing.median, "spread": timing.spread, "agents": trainer.cuda_envs.n_agents, "T": steps}
            figures.add_peer(f"warpdrive.{name}.{mode}", rate, "M steps/s", case.h200.get(mode), **details)


def main() -> None:
    """Measures all cases."""
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--calls", type=int, default=200, metavar="N", help="steps in each of three repetitions")
    parser.add_argument("--here", action="store_true", help="measure the cases in this process")
    arguments = parser.parse_args()
    figures = Figures("peers", arguments.json)
    if problem := missing_modules("torch", "numba", "warp_drive"):
        figures.add_failure("warpdrive", problem)
        return
    if arguments.here:
        from benchmarks.peers.legacy_modules import provide_legacy_modules

        provide_legacy_modules()
        for name in arguments.cases:
            measure(figures, name, CASES[name], arguments.calls)
        return
    for name in arguments.cases:
        command = [sys.executable, __file__, "--here", "--cases", name, "--calls", str(arguments.calls)]
        command += ["--json", str(arguments.json)] if arguments.json else []
        try:
            done = subprocess.run(command, check=False, timeout=120, stderr=subprocess.PIPE, text=True)
        except (subprocess.SubprocessError, OSError) as error:
            figures.add_failure(f"warpdrive.{name}", error)
            continue
        if done.returncode:
            figures.add_failure(f"warpdrive.{name}", done.stderr[-400:])


if __name__ == "__main__":
    main()
