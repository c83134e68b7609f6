"""WarpDrive on its Numba backend: its environments stepped, and its trainer's A2C. Each case has a process of its own.

    step      the step's kernel and its reset kernels in every step, fixed actions
    sampled   its sampler, then the same
    trainer   its sampler, the step, and the reset kernels only if a flag on the host says that some environment is done
    a2c       a whole iteration of its trainer
    a2c.free  the same without the three waits for the device that it has in each step for its own statistics

A step is one of an environment with all its agents. Settings are those of its own run configurations, with E, T and sizes as in
the table. It restores observations from a fixed copy, or from a pool, and keeps no last observation.
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
    """What is measured."""

    config: str  # of its run_configs
    num_envs: int
    num_steps: int  # of a rollout, T, of which its trainer wants at least 2; iterations are timed if there are more
    env: dict[str, Any]  # what differs from that configuration
    h200: dict[str, float]  # {mode: M env steps/s} on one H200, rl_warp_drive 2.7.1


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


def game(config: str, settings: dict[str, Any]) -> Any:
    """Its environment."""
    if config == "tag_gridworld":
        from example_envs.tag_gridworld.tag_gridworld import CUDATagGridWorld as Game
    elif config == "tag_continuous":
        from example_envs.tag_continuous.tag_continuous import TagContinuous as Game
    elif config == "single_cartpole":
        from example_envs.single_agent.classic_control.cartpole.cartpole import CUDAClassicControlCartPoleEnv as Game
    else:
        from example_envs.single_agent.classic_control.acrobot.acrobot import CUDAClassicControlAcrobotEnv as Game
    return Game(**settings)


def trainer_of(case: Case, folder: str) -> Any:
    """Its trainer, with all that it steps."""
    import warp_drive
    import yaml
    from warp_drive.env_wrapper import EnvWrapper
    from warp_drive.training.trainers.trainer_a2c import TrainerA2C

    config = yaml.safe_load((Path(warp_drive.__file__).parent / f"training/run_configs/{case.config}.yaml").read_text())
    config["env"] |= case.env
    config["trainer"] |= {"num_envs": case.num_envs, "train_batch_size": case.num_envs * case.num_steps, "seed": 0}
    config["trainer"]["num_episodes"] = case.num_envs * case.num_steps
    config["saving"] |= {"basedir": folder, "metrics_log_freq": 10**9, "model_params_save_freq": 10**9}
    envs = EnvWrapper(game(case.config, config["env"]), num_envs=case.num_envs, env_backend="numba")
    roles = {"tagger": "taggers", "runner": "runners"}
    if "shared" in config["policy"]:
        everyone = [*envs.env.taggers, *envs.env.runners] if case.config.startswith("tag_") else list(envs.env.agents)
        policies = {"shared": everyone}
    else:
        policies = {policy: list(getattr(envs.env, roles[policy])) for policy in config["policy"]}
    return TrainerA2C(envs, config, policies, verbose=False)


def modes(trainer: Any, case: Case) -> dict[str, Callable[[], object]]:
    """{mode: a call}, of a step or of an iteration."""
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

    def sampled() -> None:
        trainer._sample_actions_helper(uniform)
        step()

    def as_trainer() -> None:
        trainer._sample_actions_helper(uniform)
        envs.step_all_envs()
        if done.any():
            envs.reset_only_done_envs()

    def a2c() -> None:
        trainer._generate_rollout_batch()
        trainer._update_model_params(1)

    class Unmeasured:
        """An event that says nothing."""

        def record(self) -> None: ...

        def elapsed_time(self, _: object) -> float:
            return 0.0

    def free() -> None:
        with mock.patch.multiple(torch.cuda, synchronize=lambda: None, Event=lambda **_: Unmeasured()):
            a2c()

    steps: dict[str, Callable[[], object]] = {"step": step, "sampled": sampled, "trainer": as_trainer}
    return steps | ({"a2c": a2c, "a2c.free": free} if case.num_steps > 2 else {})


def measure(figures: Figures, name: str, case: Case, calls: int) -> None:
    """All modes of a case."""
    import torch

    torch.set_float32_matmul_precision("high")  # TF32, as ours
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(case, folder)
        for mode, call in modes(trainer, case).items():
            steps, repeated = (case.num_steps, max(1, calls // 40)) if mode.startswith("a2c") else (1, calls)
            took = wall_time(call, lambda _: torch.cuda.synchronize(), repeated, repeats=3)
            rate = case.num_envs * steps / took.median
            details = {"us": took.median, "spread": took.spread, "agents": trainer.cuda_envs.n_agents, "T": steps}
            figures.add_peer(f"warpdrive.{name}.{mode}", rate, "M steps/s", case.h200.get(mode), **details)


def main() -> None:
    """Measures all cases."""
    p = make_parser(__doc__)
    p.add_argument("--cases", nargs="*", default=list(CASES), metavar="NAME", help=", ".join(CASES))
    p.add_argument("--calls", type=int, default=200, metavar="N", help="of a step, in each of three repetitions")
    p.add_argument("--here", action="store_true", help="measure one case in this process")
    given = p.parse_args()
    figures = Figures("peers", given.json)
    if problem := missing_modules("torch", "numba", "warp_drive"):
        figures.add_failure("warpdrive", problem)
        return
    if given.here:
        from benchmarks.peers.stand_ins import stand_in

        stand_in()
        for name in given.cases:
            measure(figures, name, CASES[name], given.calls)
        return
    for name in given.cases:
        command = [sys.executable, __file__, "--here", "--cases", name, "--calls", str(given.calls)]
        command += ["--json", str(given.json)] if given.json else []
        try:
            done = subprocess.run(command, check=False, timeout=120, stderr=subprocess.PIPE, text=True)
        except (subprocess.SubprocessError, OSError) as error:
            figures.add_failure(f"warpdrive.{name}", error)
            continue
        if done.returncode:
            figures.add_failure(f"warpdrive.{name}", done.stderr[-400:])


if __name__ == "__main__":
    main()
