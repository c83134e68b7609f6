"""CleanRL's ppo.py, dqn.py and ppo_continuous_action.py, from its package, learn after the changes of lines below."""
# /// script
# dependencies = ["tensorboard==2.21.0", "setuptools==80.9.0", "stable-baselines3==2.9.2"]
#
# [tool.client]
# title = "CleanRL: ppo.py, dqn.py, ppo_continuous_action.py"
# without-dependencies = ["cleanrl==1.2.0"]
# change = "the environment, its statistics, and the names in `infos`; `ppo.py` also from `gym` to Gymnasium"
# ///

from importlib.metadata import distribution

import numpy as np
from learning import SEED, report
from script_patch import patch, returns_in, run_script

IMPORT = ("import numpy as np\n", "import numpy as np\nfrom gpuvec.vector.wrappers import *\n")
STATISTICS = '({"episode": {n: v[k] for n, v in INFOS["episode"].items()}} for k in np.flatnonzero(INFOS["_episode"]))'
MAKE = 'gym.make_vec(args.env_id, num_envs=args.num_envs, output="numpy", autoreset_mode="SameStep")'
SYNC = "    envs = gym.vector.SyncVectorEnv(\n        [make_env(args.env_id, {}) for i in range(args.num_envs)]\n    )\n"
RECORDED = (SYNC.format("args.seed + i, i, args.capture_video, run_name"), f"    envs = RecordEpisodeStatistics({MAKE})\n")
FINAL_INFO = ('infos["final_info"]:\n', f"{STATISTICS.replace('INFOS', 'infos')}:\n")

PPO = [
    ("import gym\n", "import gymnasium as gym\n"),
    IMPORT,
    RECORDED,
    ("envs.reset())", "envs.reset(seed=args.seed)[0])"),
    (
        "            next_obs, reward, done, info = envs.step(action.cpu().numpy())\n",
        "            next_obs, reward, terminated, truncated, info = envs.step(action.cpu().numpy())\n"
        "            done = np.logical_or(terminated, truncated)\n",
    ),
    ("for item in info:\n", f"for item in {STATISTICS.replace('INFOS', 'info')}:\n"),
]
DQN = [
    IMPORT,
    RECORDED,
    ("for info in " + FINAL_INFO[0], "for info in " + FINAL_INFO[1]),
    ('infos["final_observation"]', 'infos["final_obs"]'),
]
CONTINUOUS = [
    IMPORT,
    (
        SYNC.format("i, args.capture_video, run_name, args.gamma"),
        f"    envs = NormalizeObservation(ClipAction(RecordEpisodeStatistics({MAKE})))\n"
        "    envs = ClipReward(NormalizeReward(envs, gamma=args.gamma), -10, 10)\n",
    ),
    # Gymnasium's TransformObservation does not support SAME_STEP.
    ("    next_obs = torch.Tensor(next_obs)", "    next_obs = torch.Tensor(next_obs).clip(-10, 10)"),
    ("next_done = torch.Tensor(next_obs)", "next_done = torch.Tensor(next_obs).clip(-10, 10)"),
    ("for info in " + FINAL_INFO[0], "for info in " + FINAL_INFO[1]),
]
CARTPOLE, PENDULUM = ("--env-id", "gpuvec:gpuvec/CartPole-v1"), ("--env-id", "gpuvec:gpuvec/Pendulum-v1")
STEPS = ("--total-timesteps", "100000")
RUNS = {
    "ppo.py": (PPO, [*CARTPOLE, "--total-timesteps", "40000", "--learning-rate", "1e-3"], lambda a, b: b > 3 * a),
    "dqn.py": (
        DQN,
        [*CARTPOLE, "--total-timesteps", "25000", "--learning-starts", "2000", "--learning-rate", "1e-3"],
        lambda a, b: b > 2 * a,
    ),
    "ppo_continuous_action.py": (
        CONTINUOUS,
        [*PENDULUM, "--num-envs", "8", "--num-steps", "256", "--gamma", "0.9", "--learning-rate", "1e-3", *STEPS],
        lambda a, b: b > a + 200,
    ),
}

line_counts = []
for name, (replacements, arguments, learned) in RUNS.items():
    text = distribution("cleanrl").locate_file(f"cleanrl/{name}").read_text()
    changed, lines = patch(text, replacements)
    returns = returns_in(run_script(name, changed, *arguments, "--seed", str(SEED)))
    before, after = np.mean(returns[:20]), np.mean(returns[-20:])
    assert learned(before, after), (name, before, after)
    steps = int(arguments[arguments.index("--total-timesteps") + 1])
    report(f"{name} with {lines} lines", before, after, f"after {steps:,} steps")
    line_counts.append(lines)
print(f"lines: {max(line_counts)}")
