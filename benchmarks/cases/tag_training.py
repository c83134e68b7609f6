"""Share of the runners that trained taggers catch, with one policy for all agents and with one policy for each role.

The game is TagContinuous: five taggers and twenty runners on a square of side 20, episodes of 200 steps, equal skills,
observations of the ten nearest agents and, with `observe_self`, of the agent itself. Both roles learn. The trained taggers then
play 1,000 episodes against random runners and, with two policies, against the runners of the same training. Two baselines play
the same: random taggers, and taggers that know the whole state and move to the nearest runner. Actions are sampled; intervals
are 95 % intervals over episodes. Capture and compilation do not count in the times.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser

ENV = "gpuvec/TagContinuous-v0"
SOURCES = ("TagContinuous-v0", "vector", "learners")
GAME: dict[str, Any] = {
    "num_taggers": 5, "num_runners": 20, "grid_length": 20.0, "max_episode_steps": 200,
    "max_acceleration": 0.1, "min_acceleration": -0.1, "num_acceleration_levels": 20,
    "max_turn": 2.356, "min_turn": -2.356, "num_turn_levels": 20,
    "tagging_distance": 0.02, "use_full_observation": False, "num_other_agents_observed": 10, "observe_self": True,
}  # fmt: skip


def make_chasers(envs: Any) -> Callable[[Any], Any]:
    """Returns the policy of taggers that turn to the nearest active runner, and are as fast as it is far away.

    The policy maps observations (E, A, D) to actions (E, A, 2) int64, with action 0 for runners.

    Args:
        envs: the game, whose state the taggers know.
    """
    import torch

    from gpuvec_envs.tag_continuous import make_levels

    params, taggers, runners = envs.params, envs.roles["tagger"], envs.roles["runner"]
    acceleration_levels, turn_levels = (
        torch.as_tensor(make_levels(*bounds), device=envs.device)
        for bounds in (
            (params.min_acceleration, params.max_acceleration, params.num_acceleration_levels),
            (params.min_turn, params.max_turn, params.num_turn_levels),
        )
    )
    max_speed = params.max_speed * params.skill_level_tagger

    def act(obs: Any) -> Any:
        state = envs.get_state()
        own = {name: state[name][:, taggers] for name in ("x", "y", "heading", "speed", "acceleration")}
        dx, dy = (state[name][:, None, runners] - own[name][:, :, None] for name in ("x", "y"))
        squared = (dx.square() + dy.square()).masked_fill(~state["alive"][:, None, runners], math.inf)
        least, nearest = squared.min(-1, keepdim=True)
        dx, dy = (difference.gather(-1, nearest).squeeze(-1) for difference in (dx, dy))
        turn_angle = torch.remainder(torch.atan2(dy, dx) - own["heading"] + math.pi, 2 * math.pi) - math.pi
        acceleration = least.squeeze(-1).sqrt().clamp(max=max_speed) - own["speed"] - own["acceleration"]
        actions = torch.zeros(*obs.shape[:2], 2, dtype=torch.int64, device=obs.device)
        for k, (best, offered) in enumerate(((acceleration, acceleration_levels), (turn_angle, turn_levels))):
            actions[:, taggers, k] = (best.unsqueeze(-1) - offered).abs().argmin(-1)
        return actions

    return act


def percent_caught(taggers: Any, runners: Any, episodes: int, seed: int, device: str) -> tuple[float, float]:
    """Returns the share of runners that are caught and half its 95 % interval, in percent.

    Args:
        taggers: the player of the taggers.
        runners: the player of the runners.
        episodes: how many are played.
        seed: of the environment.
        device: "cpu" or "cuda:<index>".
    """
    from gpuvec.learners.evaluation.evaluate import run_episodes
    from gpuvec.learners.evaluation.players import by_role

    players = by_role({"tagger": taggers, "runner": runners})
    results = run_episodes(ENV, players, episodes=episodes, seed=seed, device=device, params=GAME)
    percents = 100.0 * results.terminated[:, results.roles["runner"]].double().mean(1)
    return float(percents.mean()), 1.96 * float(percents.std()) / episodes**0.5


def train_taggers(policies: str, seed: int, device: str, steps: int | None) -> tuple[Any, Any]:
    """Returns the settings and the result of a training.

    Args:
        policies: "trained" for one policy of all agents, "two" for one of each role.
        seed: of the training.
        device: "cpu" or "cuda:<index>".
        steps: env steps; None for the tuned number.
    """
    from gpuvec.learners.config.tuned import tuned
    from gpuvec.learners.training import train

    args = tuned(ENV, device, params=GAME, seed=seed, total_steps=steps).resolved(device)
    if policies == "trained":
        return args, train(args)
    # Runners need more steps to learn than taggers do.
    args = replace(args, total_steps=3 * args.iterations * args.steps_per_iteration)
    return args, train({"tagger": args, "runner": args})


def main() -> None:
    """Trains and evaluates with all seeds."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, metavar="N", help="env steps of a training, instead of the tuned number")
    parser.add_argument("--episodes", type=int, default=1000, metavar="N", help="of an evaluation")
    arguments = parser.parse_args()
    figures = Figures("tag_training", arguments.json)

    from gpuvec.engine.backends.device import parse_device
    from gpuvec.learners.evaluation.players import at_random, policy
    from gpuvec.learners.seeds import EVALUATION, stream_seed

    device, episodes = str(parse_device(arguments.device)), arguments.episodes

    def add(name: str, taggers: Any, runners: Any, seed: int, **details: Any) -> None:
        percent, interval = percent_caught(taggers, runners, episodes, seed, device)
        figures.add(name, percent, "% caught", SOURCES, interval=interval, episodes=episodes, **details)

    for name, player in (("random", at_random(7)), ("chase", make_chasers)):
        add(name, player, at_random(1000), 1000)
    for seed in arguments.seeds:
        for policies in ("trained", "two"):
            try:
                args, result = train_taggers(policies, seed, device, arguments.steps)
            except Exception as error:  # noqa: BLE001  # a seed that fails must not stop the others
                figures.add_failure(f"{policies}.seed{seed}", error)
                continue
            last = result.history[-1]
            details = {"steps": int(last["steps"]), "seconds": last["seconds"], "envs": args.num_envs}
            seeds = {role: stream_seed(seed, EVALUATION, role) for role in result.networks}
            players = {role: policy(net, greedy=False, seed=seeds[role]) for role, net in result.networks.items()}
            taggers = players["all" if policies == "trained" else "tagger"]
            add(f"{policies}.seed{seed}", taggers, at_random(1000 + seed), 1000 + seed, **details)
            if policies == "two":  # the same taggers, against the runners of the training
                add(f"{policies}.seed{seed}.runners", taggers, players["runner"], 1000 + seed)


if __name__ == "__main__":
    main()
