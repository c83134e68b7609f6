#!/usr/bin/env python3
"""Shows in about a minute that gpuvec works on this machine: environments, their rules, a training, an evaluation.

`python3 run.py check` runs it in `.venv`. Any Python with gpuvec and torch runs it: `python tools/smoke_test.py`.
It uses a GPU if there is one, and `--device cpu` otherwise, and writes no file but compiled code in the user's cache.
"""

import argparse
import sys
import time
from collections.abc import Callable

import gymnasium
import numpy as np

import gpuvec

SINGLE, MANY = "gpuvec/CartPole-v1", "gpuvec/TagGridWorld-v0"


def check_steps(device: str) -> str:
    """Steps many environments of one agent and of several agents, and returns what was seen."""
    shapes = []
    for name in (SINGLE, MANY):
        envs = gymnasium.make_vec(name, num_envs=1024, device=device, output="numpy")
        obs, _ = envs.reset(seed=0)
        envs.action_space.seed(0)
        for _ in range(50):
            obs, rewards, *_ = envs.step(envs.action_space.sample())
            assert np.isfinite(obs).all(), f"{name}: observations are not finite"
            assert np.isfinite(rewards).all(), f"{name}: rewards are not finite"
        shapes.append(f"{name} {obs.shape}")
        envs.close()
    return f"50 steps each, observations {' and '.join(shapes)}"


def check_rules(device: str) -> str:
    """Compares CartPole with Gymnasium's own, from equal states with equal actions, and returns the largest difference."""
    ours = gymnasium.make_vec(SINGLE, num_envs=8, device=device, output="numpy", autoreset_mode="Disabled")
    obs, _ = ours.reset(seed=3)
    references = [gymnasium.make("CartPole-v1") for _ in obs]
    for env, row in zip(references, obs, strict=True):
        env.reset(seed=0)
        env.unwrapped.state = row.astype(np.float64)
    generator, largest, compared = np.random.default_rng(0), 0.0, 0
    running = np.ones(8, bool)
    while running.any():
        actions = generator.integers(0, 2, 8)
        obs, rewards, terminated, *_ = ours.step(actions)
        for row in np.flatnonzero(running):
            expected, reward, is_terminated, *_ = references[row].step(actions[row])
            largest = max(largest, float(np.abs(obs[row] - expected).max()))
            assert (reward, is_terminated) == (rewards[row], terminated[row]), "reward or end differ from Gymnasium's"
            compared += 1
        running &= ~terminated
        if terminated.any():  # a row that has ended is not stepped
            ours.reset(options={"reset_mask": terminated})
    ours.close()
    assert largest < 1e-4, f"observations differ from Gymnasium's by {largest:.1e}"
    return f"{compared} steps like Gymnasium's CartPole-v1, largest difference {largest:.1e}"


def check_learning(device: str) -> str:
    """Trains PPO on CartPole, evaluates the policy and random actions, and returns both means."""
    from gpuvec.learners.config.tuned import tuned
    from gpuvec.learners.evaluation.evaluate import evaluate, run_episodes
    from gpuvec.learners.evaluation.players import at_random
    from gpuvec.learners.ppo import train

    result = train(tuned(SINGLE, device, target_return=400.0, seed=1))
    trained = evaluate(result.network, SINGLE, seed=5, device=device).mean()
    random = run_episodes(SINGLE, at_random(), seed=5, device=device).returns.mean()
    assert trained > 300 > 50 > random, f"the policy has a mean return of {trained:.0f}, random actions {random:.0f}"
    return f"the trained policy has a mean return of {trained:.0f} of 500, random actions {random:.0f}"


CHECKS: dict[str, Callable[[str], str]] = {
    "step environments of one and of several agents": check_steps,
    "compare the rules with Gymnasium's": check_rules,
    "train PPO and evaluate the policy": check_learning,
}


def main() -> int:
    """Runs the checks; returns 0 if all of them passed, and otherwise 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="auto", help='"auto" (the default) uses a GPU if there is one; or cpu, cuda')
    device, start = parser.parse_args().device, time.monotonic()
    print(f"gpuvec {gpuvec.__version__}, Python {sys.version.split()[0]}, device {device}", flush=True)
    for number, (name, check) in enumerate(CHECKS.items(), 1):
        print(f"{number} of {len(CHECKS)}  {name} ...", flush=True)
        began = time.monotonic()
        try:
            seen = check(device)
        except Exception as error:  # noqa: BLE001  # whatever goes wrong is what this reports
            print(
                f"        FAILED: {type(error).__name__}: {error}\nTry `gpuvec doctor`, which says what is missing.", flush=True
            )
            return 1
        print(f"        ok, {time.monotonic() - began:.0f} s: {seen}", flush=True)
    print(f"gpuvec works on this machine: {len(CHECKS)} checks in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped by Ctrl-C")
