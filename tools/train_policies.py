"""Trains the policies that come with gpuvec, and writes their files and model cards; or trains again and compares.

    python tools/train_policies.py list
    python tools/train_policies.py train CartPole-v1 --seeds 0 1 2 3 4
    python tools/train_policies.py verify CartPole-v1 --seeds 10 11 12

Trainings use the tuned settings of the environment. A result is the mean over 1,000 episodes in which the policy takes its most
probable actions, in the environment with the parameters of the file: parameters that only make training easier, such as a wider
range of initial states, are left out. The policy in the file is that of the seed with the median result.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.policy_card import Record, combine_curves, differences, read_card, write_card

from benchmarks.cases.game_training import score_both_sides
from benchmarks.cases.solve import Match, make_curve, with_decreasing_entropy, with_evaluations
from benchmarks.cases.tag_training import GAME
from gpuvec.learners.config.tuned import find_tuned_settings, tuned
from gpuvec.policies import FOLDER, SUFFIX

EPISODES = 1000
EVALUATION_SEED = 1000  # of the episodes; that of the training is added
CURVE_MEASURE = "of evaluations during the trainings, with drawn actions and the parameters above"
TRAINING_PARAMS = ("low", "high")  # of the range of initial states, with which only trainings begin


class PolicyTask(NamedTuple):
    """A policy that comes with gpuvec."""

    name: str
    env: str  # without "gpuvec/"
    goal: str  # what a good policy does or who should win, in words
    algorithm: str = "ppo"
    params: Mapping[str, Any] = {}  # is not mutated
    has_opponent: bool = False  # that wins or blocks at once, in half of the games of a training, and in those of the result
    demo: Mapping[str, Any] = {}  # options of `record_policy` for `gpuvec demo`; is not mutated

    def args(self, seed: int, device: str) -> Any:
        """Returns the settings of the training with a seed."""
        return tuned(f"gpuvec/{self.env}", device, self.algorithm, seed=seed, params=self.params)

    def file_params(self) -> dict[str, Any]:
        """Returns the parameters of the environment for which the policy is meant."""
        params = {**find_tuned_settings(f"gpuvec/{self.env}", self.algorithm).settings.get("params", {}), **self.params}
        return {name: value for name, value in params.items() if name not in TRAINING_PARAMS}

    def command(self, seed: int, device: str) -> str:
        """Returns the command that trains it, or the call where it has an opponent."""
        kind = device.partition(":")[0]
        if self.has_opponent:
            table = with_decreasing_entropy(self.args(seed, device).resolved(device)).ent_coef_table
            return f'train(tuned("gpuvec/{self.env}", "{kind}", seed={seed}, ent_coef_table={table}), opponent=win_or_block)'
        algorithm = "" if self.algorithm == "ppo" else f" --algorithm {self.algorithm}"
        params = "".join(f" {name} {value}" for name, value in self.params.items())
        return f"gpuvec train --env gpuvec/{self.env}{algorithm} --device {kind} --seed {seed}" + (
            params and f" --params{params}"
        )


# Five taggers and twenty runners. Tuned settings already have `observe_self`.
TAG_GAME = {name: value for name, value in GAME.items() if name != "observe_self"}


def _tag(name: str, goal: str, tagger: float, runner: float) -> PolicyTask:
    params = {**TAG_GAME, "skill_level_tagger": tagger, "skill_level_runner": runner}
    return PolicyTask(f"TagContinuous-v0-{name}", "TagContinuous-v0", goal, params=params)


# On the grid of the training ten taggers catch the runner in five steps on average.
LONG_CHASES = {"params": {"grid_length": 30}, "rows": 64, "keep_longest": 4}
# The skill levels of TagContinuous are factors of the largest speed.
TASKS = {
    task.name: task
    for task in (
        PolicyTask("CartPole-v1", "CartPole-v1", "The pole should stay up, and the cart on the rail, until the time limit."),
        PolicyTask("Acrobot-v1", "Acrobot-v1", "The tip should rise above the line in as few steps as possible."),
        PolicyTask("Pendulum-v1", "Pendulum-v1", "The pendulum should stand upright soon, and stay there.", "ddpg"),
        PolicyTask(
            "TagGridWorld-v0",
            "TagGridWorld-v0",
            "Many taggers chase one runner: they should win, and the runner should last as long as it can.",
            demo=LONG_CHASES,
        ),
        _tag("fast-taggers", "Taggers are faster than runners: they should catch most of them.", 2.0, 1.0),
        _tag(
            "equal",
            "Both sides are equally fast: taggers have to surround runners, and many runners should get away.",
            1.0,
            1.0,
        ),
        _tag("fast-runners", "Runners are faster than taggers: most of them should get away.", 1.0, 2.0),
        PolicyTask("Breakout-v0", "Breakout-v0", "The paddle should not lose the ball, and break one wall after the other."),
        PolicyTask(
            "ConnectFour-v0",
            "ConnectFour-v0",
            "The policy plays both sides. Red begins, which is an advantage: red should win more often than yellow.",
            has_opponent=True,
            demo={"stochastic": True},
        ),
        PolicyTask("SimpleSpread-v0", "SimpleSpread-v0", "Each landmark should be covered by an agent, without collisions."),
    )
}


class TrainedSeed(NamedTuple):
    """The result of a training."""

    returns: dict[str, float]  # {role: mean return}
    curve: list[tuple[int, float]]  # (env steps, return)
    content: bytes  # of the policy file
    steps: int


def train_seed(task: PolicyTask, seed: int, device: str) -> TrainedSeed:
    """Trains and evaluates.

    Args:
        task: the policy.
        seed: of the training.
        device: "cpu" or "cuda:<index>".
    """
    from gpuvec.learners.environments import policy_roles
    from gpuvec.learners.evaluation.players import policies_by_role, win_or_block
    from gpuvec.learners.policy_files.trained_policy import TrainedPolicy
    from gpuvec.learners.training import train

    args = replace(task.args(seed, device).resolved(device), evaluate_params=task.file_params())
    args = with_decreasing_entropy(args) if task.has_opponent else with_evaluations(args)
    policies = dict.fromkeys(policy_roles(args.env, args.params, task.algorithm), args)
    result = train(policies, opponent=win_or_block if task.has_opponent else None)
    settings = {role: {**values, "params": task.file_params()} for role, values in result.checkpoint["args"].items()}
    policy = TrainedPolicy({**result.checkpoint, "args": settings}, device)
    returns = mean_returns(task, policies_by_role(policy.networks), EVALUATION_SEED + seed, device)
    curve = [] if task.has_opponent else [(steps, float(value)) for steps, _, value in make_curve(result.history)]
    print(f"{task.name}, seed {seed}: {', '.join(f'{role} {value:.4g}' for role, value in returns.items())}", flush=True)
    return TrainedSeed(returns, curve, policy.to_bytes(), int(result.history[-1]["steps"]))


def mean_returns(task: PolicyTask, player: Any, seed: int, device: str) -> dict[str, float]:
    """Returns {role: mean return of an agent}, or {"all": ...} in environments without roles.

    Args:
        task: the policy.
        player: who acts for all agents, of `gpuvec.learners.evaluation.players`.
        seed: of the episodes.
        device: on which they are played.
    """
    from gpuvec.learners.evaluation.players import wins_or_blocks

    match = Match(f"gpuvec/{task.env}", task.file_params(), EPISODES, seed, device)
    if task.has_opponent:
        return {"all": score_both_sides(player, wins_or_blocks, match)}
    results = match.play(player)
    if len(results.roles) < 2:
        return {"all": float(results.returns.mean())}
    return {role: float(results.returns[:, agents].mean()) for role, agents in results.roles.items()}


def median_seed(trained: Mapping[int, TrainedSeed]) -> int:
    """Returns the seed whose mean over roles is the median, the lower one of two."""
    scores = {seed: sum(each.returns.values()) / len(each.returns) for seed, each in trained.items()}
    return sorted(scores, key=lambda seed: (scores[seed], seed))[(len(scores) - 1) // 2]


def write_policy(task: PolicyTask, seeds: Sequence[int], device: str, folder: Path) -> None:
    """Trains all seeds, and writes the file and the card of the median one.

    Args:
        task: the policy.
        seeds: two to ten seeds.
        device: "cpu" or "cuda:<index>".
        folder: where both are written.
    """
    import torch

    import gpuvec
    from gpuvec.learners.evaluation.players import at_random

    trained = {seed: train_seed(task, seed, device) for seed in seeds}
    best = median_seed(trained)
    record = Record(
        task.name, f"gpuvec/{task.env}", task.algorithm, task.file_params(), task.command(best, device), best, list(seeds),
        {role: [each.returns[role] for each in trained.values()] for role in trained[best].returns},
        f"means of {EPISODES:,} episodes "
        + ("against an opponent that wins or blocks at once" if task.has_opponent else "of the most probable actions"),
        combine_curves([each.curve for each in trained.values()]), CURVE_MEASURE, trained[best].steps, describe_device(device),
        time.strftime("%Y-%m-%d"), {"gpuvec": gpuvec.__version__, "torch": torch.__version__},
        hashlib.sha256(trained[best].content).hexdigest(), task.goal,
        mean_returns(task, at_random(EVALUATION_SEED), EVALUATION_SEED, device), dict(task.demo),
    )  # fmt: skip
    (folder / f"{task.name}{SUFFIX}").write_bytes(trained[best].content)
    (folder / f"{task.name}.md").write_text(write_card(record))


def verify_policy(task: PolicyTask, seeds: Sequence[int], device: str, folder: Path) -> list[str]:
    """Returns what differs between a card and its file, the file's returns, and the returns of new trainings.

    Args:
        task: the policy.
        seeds: two to ten seeds, others than those of the card.
        device: "cpu" or "cuda:<index>".
        folder: where file and card are.
    """
    import gpuvec
    from gpuvec.learners.evaluation.players import policies_by_role

    record = read_card((folder / f"{task.name}.md").read_text())
    file = folder / f"{task.name}{SUFFIX}"
    lines = []
    if hashlib.sha256(file.read_bytes()).hexdigest() != record.sha256:
        lines.append(f"{task.name}: {file} is not the file of the card")
    policy = gpuvec.load_policy(file, device=device)
    returns = mean_returns(task, policies_by_role(policy.networks), EVALUATION_SEED + record.seed, device)
    for role, values in record.returns.items():
        expected = values[record.seeds.index(record.seed)]
        if abs(returns[role] - expected) > 0.02 * max(1.0, abs(expected)):
            lines.append(f"{task.name}, {role}: the file has the return {returns[role]:.4g}, and the card says {expected:.4g}")
    trained = [train_seed(task, seed, device).returns for seed in seeds]
    return lines + differences(record, {role: [each[role] for each in trained] for role in record.returns})


def describe_device(device: str) -> str:
    """Returns the name of a device in words."""
    import torch

    return "CPU, " + platform.machine() if device == "cpu" else torch.cuda.get_device_name(device)


def main() -> int:
    """Runs the command, and returns the exit status: 1 if a policy does not equal its card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("list", "train", "verify"))
    parser.add_argument("names", nargs="*", choices=[*TASKS, []], metavar="NAME", help="all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help="two to ten; 0 to 4 to train, 10 to 12 to verify")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    if arguments.command == "list":
        print("\n".join(TASKS))
        return 0
    from gpuvec.engine.backends.device import parse_device

    seeds = arguments.seeds or (range(5) if arguments.command == "train" else range(10, 13))
    if not 2 <= len(seeds) <= 10:
        parser.error(f"--seeds must be two to ten seeds, got {len(seeds)}")
    device, lines = str(parse_device(arguments.device)), []
    for name in arguments.names or TASKS:
        if arguments.command == "train":
            write_policy(TASKS[name], list(seeds), device, arguments.folder)
        else:
            lines += verify_policy(TASKS[name], list(seeds), device, arguments.folder)
    print("\n".join(lines) or "done")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
