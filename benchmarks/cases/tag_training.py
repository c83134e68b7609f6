"""Share of the runners that taggers catch after training, with one policy for all and with one for each role.

Five taggers and twenty runners on a square of side 20, episodes of 200 steps, skills alike, each sees the ten nearest. Both
roles learn, with `observe_self`; then the taggers play 1,000 episodes against random runners, and against those that learned
beside them. Beside them stand taggers that move at random, and taggers that know the whole state and head for the nearest
runner. Actions are drawn; intervals are of 95 %, over episodes. Capture and compilation are not counted in the times.
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
OF = ("TagContinuous-v0", "vector", "learners")
GAME: dict[str, Any] = {
    "num_taggers": 5, "num_runners": 20, "grid_length": 20.0, "max_episode_steps": 200,
    "max_acceleration": 0.1, "min_acceleration": -0.1, "num_acceleration_levels": 20,
    "max_turn": 2.356, "min_turn": -2.356, "num_turn_levels": 20,
    "tagging_distance": 0.02, "use_full_observation": False, "num_other_agents_observed": 10, "observe_self": True,
}  # fmt: skip


def chase(envs: Any) -> Callable[[Any], Any]:
    """Taggers who turn to the nearest runner in the game and go as fast as it is far; runners get the action 0."""
    import torch

    from gpuvec_envs.tag_continuous import levels

    p, taggers, runners = envs.params, envs.roles["tagger"], envs.roles["runner"]
    accelerations, turns = (
        torch.as_tensor(levels(*bounds), device=envs.device)
        for bounds in (
            (p.min_acceleration, p.max_acceleration, p.num_acceleration_levels),
            (p.min_turn, p.max_turn, p.num_turn_levels),
        )
    )
    top = p.max_speed * p.skill_level_tagger

    def act(obs: Any) -> Any:
        s = envs.get_state()
        mine = {name: s[name][:, taggers] for name in ("x", "y", "heading", "speed", "acceleration")}
        dx, dy = (s[name][:, None, runners] - mine[name][:, :, None] for name in ("x", "y"))
        square = (dx.square() + dy.square()).masked_fill(~s["alive"][:, None, runners], math.inf)
        least, nearest = square.min(-1, keepdim=True)
        dx, dy = (d.gather(-1, nearest).squeeze(-1) for d in (dx, dy))
        turn = torch.remainder(torch.atan2(dy, dx) - mine["heading"] + math.pi, 2 * math.pi) - math.pi
        more = least.squeeze(-1).sqrt().clamp(max=top) - mine["speed"] - mine["acceleration"]
        actions = torch.zeros(*obs.shape[:2], 2, dtype=torch.int64, device=obs.device)
        for k, (wanted, offered) in enumerate(((more, accelerations), (turn, turns))):
            actions[:, taggers, k] = (wanted.unsqueeze(-1) - offered).abs().argmin(-1)
        return actions

    return act


def caught(taggers: Any, runners: Any, episodes: int, seed: int, device: str) -> tuple[float, float]:
    """The share of runners that taggers get, in per cent, and how far it may be off; both are players, and who is tagged
    leaves the game.
    """
    from gpuvec.learners.evaluation.evaluate import run_episodes
    from gpuvec.learners.evaluation.players import by_role

    both = by_role({"tagger": taggers, "runner": runners})
    found = run_episodes(ENV, both, episodes=episodes, seed=seed, device=device, params=GAME)
    shares = 100.0 * found.left[:, found.roles["runner"]].double().mean(1)
    return float(shares.mean()), 1.96 * float(shares.std()) / episodes**0.5


def main() -> None:
    """Trains and plays with all seeds."""
    p = make_parser(__doc__)
    p.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    p.add_argument("--device", default="auto")
    p.add_argument("--steps", type=int, default=None, metavar="N", help="env steps of a training, instead of the tuned number")
    p.add_argument("--episodes", type=int, default=1000, metavar="N", help="of an evaluation")
    given = p.parse_args()
    figures = Figures("tag_training", given.json)

    from gpuvec.engine.backends.device import parse_device
    from gpuvec.learners.config.tuned import tuned
    from gpuvec.learners.evaluation.players import at_random, policy
    from gpuvec.learners.seeds import EVALUATION, stream_seed
    from gpuvec.learners.training import train

    where, episodes = str(parse_device(given.device)), given.episodes

    def add(name: str, taggers: Any, runners: Any, seed: int, **details: Any) -> None:
        share, interval = caught(taggers, runners, episodes, seed, where)
        figures.add(name, share, "% caught", OF, interval=interval, episodes=episodes, **details)

    for name, player in (("random", at_random(7)), ("chase", chase)):
        add(name, player, at_random(1000), 1000)
    for seed in given.seeds:
        for policies in ("trained", "two"):
            try:
                args = tuned(ENV, where, params=GAME, seed=seed, total_steps=given.steps).resolved(where)
                if policies == "two":  # to run away takes longer to learn than to catch
                    args = replace(args, total_steps=3 * args.iterations * args.steps_per_iteration)
                result = train(args if policies == "trained" else {"tagger": args, "runner": args})
            except Exception as error:  # noqa: BLE001  # one seed that fails must not cost the others
                figures.add_failure(f"{policies}.seed{seed}", error)
                continue
            last = result.history[-1]
            details = {"steps": int(last["steps"]), "seconds": last["seconds"], "envs": args.num_envs}
            seeds = {role: stream_seed(seed, EVALUATION, role) for role in result.networks}
            players = {role: policy(net, greedy=False, seed=seeds[role]) for role, net in result.networks.items()}
            taggers = players["all" if policies == "trained" else "tagger"]
            add(f"{policies}.seed{seed}", taggers, at_random(1000 + seed), 1000 + seed, **details)
            if policies == "two":  # the same taggers, against those who learned to run
                add(f"{policies}.seed{seed}.runners", taggers, players["runner"], 1000 + seed)


if __name__ == "__main__":
    main()
