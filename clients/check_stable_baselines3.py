"""PPO of Stable-Baselines3 learns CartPole through `StableBaselines3VecEnv`, and the adapter's own tests pass."""
# /// script
# dependencies = ["stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "pytest==9.2.0", "pytest-timeout==2.4.0", "pillow==13.0.0"]
#
# [tool.client]
# title = "Stable-Baselines3"
# lines = 1
# change = "`StableBaselines3VecEnv(envs)` of `gpuvec.adapters.stable_baselines3`, in `SameStep` mode"
# ///

import subprocess
import sys
from pathlib import Path

import gymnasium
from learning import SEED, report
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor

import gpuvec
from gpuvec.adapters.stable_baselines3 import StableBaselines3VecEnv

ROOT = Path(gpuvec.__file__).resolve().parents[2]
command = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-m",
    "not gpu",
    str(ROOT / "tests/vector/test_adapters.py"),
]
if SEED == 1:  # nothing in the tests depends on it
    tests = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    assert "skipped" not in tests, tests

envs = gymnasium.make_vec("gpuvec/CartPole-v1", num_envs=16, device="cpu", output="numpy", autoreset_mode="SameStep")
rows = VecMonitor(StableBaselines3VecEnv(envs))
agent = PPO("MlpPolicy", rows, n_steps=64, batch_size=256, learning_rate=1e-3, seed=SEED, device="cpu")
before, _ = evaluate_policy(agent, rows, n_eval_episodes=32)
agent.learn(40_000)
after, _ = evaluate_policy(agent, rows, n_eval_episodes=32)
assert after > 150, f"the mean return is {after} after 40,000 steps"
rows.close()
report("PPO on CartPole", before, after, "after 40,000 steps")
print("evidence: the adapter's tests, also with `MaskablePPO`")
