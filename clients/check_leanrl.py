"""LeanRL's ppo_continuous_action_torchcompile.py learns Pendulum on tensors after the changes of lines below."""
# /// script
# dependencies = ["tensordict==0.14.3", "tyro==1.0.17", "tqdm==4.70.1", "wandb==0.31.0"]
#
# [tool.client]
# title = "LeanRL: ppo_continuous_action_torchcompile.py"
# change = "the environment, `step_func` without its copies, the returns in `infos`; two lines for a newer TensorDict"
# missing = "it is on GitHub and on no package index; `--source FOLDER` names a folder with its `leanrl/`"
# ///

import os
import re
from pathlib import Path

from learning import SEED, report
from script_patch import patch, run_script

NAME = "ppo_continuous_action_torchcompile.py"
REPLACEMENTS = [
    ("import numpy as np\n", "import numpy as np\nfrom gpuvec.vector.wrappers import *\n"),
    (
        "    envs = gym.vector.SyncVectorEnv(\n"
        "        [make_env(args.env_id, i, args.capture_video, run_name, args.gamma) for i in range(args.num_envs)]\n"
        "    )\n",
        '    envs = gym.make_vec(args.env_id, num_envs=args.num_envs, autoreset_mode="SameStep", device=device.type)\n'
        "    envs = NormalizeReward(NormalizeObservation(ClipAction(RecordEpisodeStatistics(envs))), gamma=args.gamma)\n"
        "    envs = ClipReward(envs, -10, 10)\n",
    ),
    (
        "        next_obs_np, reward, terminations, truncations, info = envs.step(action.cpu().numpy())\n"
        "        next_done = np.logical_or(terminations, truncations)\n"
        "        return torch.as_tensor(next_obs_np, dtype=torch.float), torch.as_tensor(reward), "
        "torch.as_tensor(next_done), info\n",
        "        next_obs, reward, terminations, truncations, info = envs.step(action)\n"
        "        return next_obs.clip(-10, 10), reward, terminations | truncations, info\n",
    ),
    # The script is older than TensorDict 0.14, in which parameters that are copied into a module require gradients.
    ("policy = agent_inference.get_action_and_value\n", "policy = torch.no_grad()(agent_inference.get_action_and_value)\n"),
    ("get_value = agent_inference.get_value\n", "get_value = torch.no_grad()(agent_inference.get_value)\n"),
    ("torch.tensor(envs.reset()[0], device=device, dtype=torch.float)", "envs.reset()[0].clip(-10, 10)"),
    (
        '            for info in infos["final_info"]:\n                r = float(info["episode"]["r"].reshape(()))\n',
        '            for r in infos["episode"]["r"][infos["_episode"]].tolist():\n',
    ),
]

script = Path(os.environ["GPUVEC_CLIENT_SOURCE"]) / "leanrl" / NAME
changed, lines = patch(script.read_text(), REPLACEMENTS)
output = run_script(
    NAME, changed, "--env-id", "gpuvec:gpuvec/Pendulum-v1", "--total-timesteps", "102400", "--num-envs", "8",
    "--num-steps", "256", "--gamma", "0.9", "--learning-rate", "1e-3", "--seed", str(SEED),
)  # fmt: skip
# Every tenth iteration prints the mean return of the last 20 episodes: the first time after 20,000 steps.
returns = [float(number) for number in re.findall(r"returns:\s*(-?[\d.]+),", output)]
before, after = returns[0], returns[-1]
assert after > before + 200, (before, after)
print(f"lines: {lines}")
report("PPO on Pendulum", before, after, "after 102,400 steps")
