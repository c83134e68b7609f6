"""The command `gpuvec record`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from gpuvec.cli.env_lookup import complete_policy_name
from gpuvec.cli.output_file import require_writable, write_file
from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines


def record(
    policy: Annotated[str, tyro.conf.Positional],
    to: Path = Path("episode.mp4"),
    rows: int = 1,
    seed: int = 0,
    steps: int | None = None,
    fps: float | None = None,
    stochastic: bool = False,
    device: str = "cpu",
    trust: bool = False,
    force: bool = False,
) -> int:
    """Record episodes of a trained policy as a video.

    Args:
        policy: a run folder, a checkpoint, a policy file, or the name of a policy that comes with gpuvec.
        to: the file, which ends with .mp4, which needs the extra `video`, or .gif.
        rows: the number of environments, which are shown side by side.
        seed: the seed of the environments.
        steps: the number of steps after which the recording is complete; by default that of the episodes.
        fps: pictures per second; by default the environment's own speed.
        stochastic: draw actions from the policy instead of taking the likeliest action.
        device: auto, cpu, cuda or cuda:1.
        trust: import the Python modules that the policy names for its environment, algorithm and network. Importing runs their
            code.
        force: replace the file if it exists.
    """
    for name, number in (("rows", rows), ("steps", steps)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")
    if fps is not None and not 0.0 < fps <= 1000.0:
        raise ValueError(f"fps must be above 0 and at most 1000, got {fps}.")
    if to.suffix not in (".mp4", ".gif"):
        raise ValueError(f"a video is .mp4 or .gif, got {to.name!r}: give the file one of these endings.")
    require_writable(to, force)
    policy = complete_policy_name(policy)
    with waiting("loading PyTorch"):
        from gpuvec.cli.policy_lookup import find_policy
        from gpuvec.replay.recording import record_policy
        from gpuvec.replay.video import encode_video

    trained_policy = find_policy(policy, device, trust)
    with waiting(f"compiling {trained_policy.env}, and recording its episodes"):
        scenes = record_policy(trained_policy, rows=rows, seed=seed, max_steps=steps, stochastic=stochastic)
    episodes = [scene.episode for scene in scenes]
    with waiting("drawing the pictures"):
        video = encode_video(episodes, to.suffix, fps)
    write_file(to, video, force)
    num_frames = max(len(episode.rewards) for episode in episodes) + 1
    print_lines(f"wrote      {to}: {num_frames} pictures, {len(video) / 1024:.0f} kB")
    return 0
