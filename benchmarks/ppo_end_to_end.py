"""Time in which PPO solves CartPole, from the first iteration on: several seeds with the default schedule.

Solved is a mean over all environments of the last episode's return of 475, as for the peers; with T = 32 that takes 15
iterations at least. Capture and compilation are not counted. What the schedule ends with is evaluated beside it, over 100
episodes of the likeliest actions. `learners.py` measures the throughput.
"""

from __future__ import annotations

import statistics

from measure import Figures, parser

OF = ("CartPole-v1", "vector", "learners")
TARGET = 475.0


def main() -> None:
    """Measures all seeds."""
    p = parser(__doc__)
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--num-envs", type=int, default=None, metavar="E")
    p.add_argument("--device", default="auto")
    p.add_argument("--constant", action="store_true", help="keep the learning rate, instead of letting it fall to 0")
    given = p.parse_args()
    figures, seconds = Figures("ppo_end_to_end", given.json), []

    from gpuvec.learners.evaluate import evaluate
    from gpuvec.learners.ppo import Args, train

    for seed in range(1, given.seeds + 1):
        result = train(Args(seed=seed, device=given.device, num_envs=given.num_envs, anneal=not given.constant))
        returns = evaluate(result.network, result.args.env, seed=1000 + seed, device=result.args.device)
        solved = next((m for m in result.history if m["last_return"] >= TARGET), None)
        name, shown = f"{result.args.num_envs}.seed{seed}", {"evaluated": float(returns.mean())}
        if solved is None:
            figures.failed(name, f"not solved in {len(result.history)} iterations, {shown}")
            continue
        seconds.append(solved["seconds"])
        shown |= {"iterations": int(solved["iteration"]), "steps": int(solved["steps"])}
        figures.add(name, solved["seconds"], "s", OF, **shown)
    if seconds:
        spread = {"fastest": min(seconds), "slowest": max(seconds), "solved": len(seconds), "seeds": given.seeds}
        figures.add(f"{result.args.num_envs}.median", statistics.median(seconds), "s", OF, **spread)


if __name__ == "__main__":
    main()
