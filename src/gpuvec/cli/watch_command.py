"""The commands that show trained policies: `gpuvec watch`, `gpuvec demo` and `gpuvec record`."""

from __future__ import annotations

import importlib
import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import tyro

from gpuvec.cli.env_lookup import complete_policy_name, find_policy
from gpuvec.cli.output_file import require_writable, write_file
from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.wrong_options import require_positive, require_speed
from gpuvec.learners.runs.records import FAILURE
from gpuvec.policies import model_card, policy_names, policy_path, read_record
from gpuvec.registration import load_env

if TYPE_CHECKING:
    from gpuvec.replay.scene import Scene

DEMO = "CartPole-v1"
ROWS, SEED = 4, 0  # of the environments of a demo
DEFAULT_PORT, MAX_PORT = 8765, 65535


def watch(
    policies: Annotated[tuple[str, ...], tyro.conf.Positional],
    rows: int = 4,
    seed: int = 0,
    steps: int | None = None,
    to: Path | None = None,
    stochastic: bool = False,
    device: str = "cpu",
    open: bool = True,
    trust: bool = False,
    force: bool = False,
    live: bool = False,
    port: int = DEFAULT_PORT,
) -> int:
    """Record episodes of trained policies, and play them in the browser.

    The replay is one HTML file, which needs no network. Several policies play the same seeds, side by side. With --live, show
    the newest replay of a run that `gpuvec train --watch` is training, with its metrics, until Ctrl-C.

    Args:
        policies: run folders, checkpoints, policy files, or names of policies that come with gpuvec, such as CartPole-v1. A
            file *.html is a saved replay: it is read, and a new page of it is written and opened.
        rows: the number of environments of each policy; an episode of each is recorded.
        seed: the seed of the environments.
        steps: the number of steps after which a recording is complete; by default that of the episode.
        to: the file to write; by default replay.html, or replay-of-<file> of a saved replay, which a later one replaces.
        stochastic: draw actions from the policy instead of taking the likeliest action.
        device: auto, cpu, cuda or cuda:1.
        open: whether a browser opens the file, if there is one.
        trust: import the Python modules that a policy names for its environment, algorithm and network. Importing runs their
            code.
        force: replace the file if it exists.
        live: serve the live replays of one run folder, and refresh the page by itself.
        port: of the live view on the loopback address, 127.0.0.1; 0 for one that is free.
    """
    if not policies:
        raise ValueError(f"name at least one policy: a run folder, a policy file, or one of {', '.join(policy_names())}.")
    if live:
        if len(policies) != 1:
            raise ValueError(f"--live shows one run folder, got {', '.join(policies)}.")
        if not 0 <= port <= MAX_PORT:
            raise ValueError(f"port must be from 0 to {MAX_PORT}, got {port}.")
        from gpuvec.learners.runs.folder import RunFolder
        from gpuvec.replay.live.files import require_live_replays
        from gpuvec.replay.live.server import LiveServer

        with RunFolder(policies[0]) as folder:
            require_live_replays(folder)
            with LiveServer(folder, port) as server:
                serve_page(server, "live", open)
        return 0
    if show_saved_replay(policies, to, open, force):
        return 0
    path = to or Path("replay.html")
    require_positive(rows=rows, steps=steps)
    require_writable(path, force)
    policies = tuple(map(complete_policy_name, policies))
    with waiting("loading PyTorch"):
        from gpuvec.replay.recording import record_policy

    trained = [find_policy(name, device, trust) for name in policies]
    scenes: list[Scene] = []
    for name, policy in zip(policies, trained, strict=True):
        with waiting(f"compiling {policy.env}, and recording {rows} of its episodes"):
            scenes += record_policy(policy, name, rows=rows, seed=seed, max_steps=steps, stochastic=stochastic)
    write_and_open(path, scenes, open)
    return 0


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
    require_positive(rows=rows, steps=steps)
    require_speed(fps)
    if to.suffix not in (".mp4", ".gif"):
        raise ValueError(f"a video is .mp4 or .gif, got {to.name!r}: give the file one of these endings.")
    require_writable(to, force)
    policy = complete_policy_name(policy)
    with waiting("loading PyTorch"):
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


def serve_page(server: Any, heading: str, is_wanted: bool) -> None:
    """Prints the address of a page, opens it in the user's browser, and serves it until Ctrl-C.

    Args:
        heading: the first word of the line that is printed.
        is_wanted: whether a browser is to open the page.
    """
    print_lines(f"{heading:<10} {server.url}   (Ctrl-C ends it)")
    open_address(server.url, is_wanted)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print_lines("stopped")


def write_and_open(path: Path, scenes: Sequence[Scene], is_wanted: bool, **options: Any) -> None:
    """Writes a replay, and opens it in the user's browser.

    Args:
        is_wanted: whether a browser is to open it.
        options: of `replay.write`.
    """
    from gpuvec import replay

    replay.write(path, scenes, **options)
    print_lines(f"wrote      {path}: {len(scenes)} episodes, {path.stat().st_size / 1024:.0f} kB")
    open_page(path, is_wanted)


def show_saved_replay(policies: Sequence[str], to: Path | None, is_wanted: bool, force: bool) -> bool:
    """Writes the page of a saved replay that the command line names again, and opens it; returns whether it names one.

    A run that ended with a number that is not finite has a replay of it, which is shown instead of its checkpoint. Anybody may
    have written the file, so it is only read: the new page has its header and its tracks, and our own player.

    Args:
        policies: what the command line names.
        to: the file to write; None for one in the working folder.
        is_wanted: whether a browser is to open it.
        force: whether an existing file is replaced.

    Raises:
        ValueError: a replay beside other names.
        ReplayError, CheckpointError: the file is not a complete replay, or is a link.
        OSError: a file cannot be read or written.
    """
    from gpuvec.replay.document import read_replay, write_replay

    for name in policies:
        path = Path(name)
        if path.is_dir() and os.path.lexists(path / FAILURE):
            path /= FAILURE
        elif path.suffix != ".html":
            continue
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path}: a file *.html is a saved replay, which `gpuvec watch` writes.")
        if len(policies) > 1:
            raise ValueError(
                f"a saved replay is shown alone, and {path} is one: name it alone, or name a checkpoint of "
                "the run to record its policy."
            )
        page = to or Path(f"replay-of-{path.name}")
        replay = read_replay(path)
        require_writable(page, force or (to is None and is_replay(page)))
        write_replay(page, replay)
        if path.name == FAILURE:
            print_lines(
                f"failure    {path.parent} ended with a number that is not finite; name a checkpoint in it to watch its policy"
            )
        print_lines(f"wrote      {page}: {path} with the player of this gpuvec")
        open_page(page, is_wanted)
        return True
    return False


def demo(
    policy: Annotated[str, tyro.conf.Positional] = DEMO,
    list: bool = False,  # the option is named --list
    to: Path | None = None,
    open: bool = True,
    force: bool = False,
) -> int:
    """Play a policy that comes with gpuvec, on the CPU, and show it in the browser.

    Args:
        policy: the name of the policy.
        list: print the names instead.
        to: the file to write; by default demo-<policy>.html, which a later demo replaces.
        open: whether a browser opens the file, if there is one.
        force: replace the file that `to` names if it exists.
    """
    if list:
        print_lines(*policy_names())
        return 0
    if Path(policy).exists() and policy not in policy_names():
        raise ValueError(f"the demo shows policies that come with gpuvec: `gpuvec watch {policy}` shows {policy}.")
    policy = complete_policy_name(policy)
    path = to or Path(f"demo-{policy}.html")
    require_writable(path, force or (to is None and is_replay(path)))
    trained, record = load_demo_policy(policy), read_record(model_card(policy))
    with waiting(f"compiling {trained.env}, and recording its episodes"):
        from gpuvec.replay.recording import record_policy

        options = {"rows": ROWS, **record["demo"]}
        scenes = record_policy(trained, policy, seed=SEED, mark_td_errors=False, **options)
    write_and_open(path, scenes, open, about=describe(record), autoplay=True)
    return 0


def describe(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns what a demo says beside its scenes, (title, text) of each paragraph."""
    env = load_env(gym.spec(record["env"]).kwargs["env"])
    summary = (importlib.import_module(env.spaces.__module__).__doc__ or "").partition("\n")[0].partition(": ")[2]
    # Sides play against each other where roles have returns of their own, or returns are those against an opponent.
    has_sides = len(record["returns"]) > 1 or "opponent" in record["measure"]
    return [
        ("The game", summary[:1].upper() + summary[1:]),
        ("Who should win" if has_sides else "A good policy", record["goal"]),
        ("This policy", describe_returns(record, env.reward_threshold)),
        ("These episodes", describe_episodes(record, env.params)),
    ]


def describe_returns(record: Mapping[str, Any], threshold: float | None) -> str:
    """Returns the returns of a policy in words, with those of random play and of trainings with other seeds.

    Args:
        threshold: the return at which the environment counts as solved; None if there is none.
    """
    index, sentences = record["seeds"].index(record["seed"]), []
    for role, values in record["returns"].items():
        subject = "Its return" if role == "all" else f"The return of a {role}"
        at_random = "with random play" if role == "all" else "where all play at random"
        sentences.append(
            f"{subject} is {values[index]:.4g}; {at_random} {record['random_returns'][role]:.4g}, in trainings with "
            f"{len(values)} seeds {min(values):.4g} to {max(values):.4g}."
        )
    sentences.append(f"Returns are {record['measure']}.")
    if threshold is not None:
        sentences.append(f"The game counts as solved at {threshold:g}.")
    return " ".join(sentences)


def describe_episodes(record: Mapping[str, Any], defaults: Any) -> str:
    """Returns in words which episodes a demo shows.

    Args:
        record: of the model card, whose `demo` has the options of `record_policy`.
    """
    options = record["demo"]
    rows = options.get("rows", ROWS)
    num_longest = options.get("keep_longest")
    selection = f"The first {rows}" if num_longest is None else f"The longest {num_longest} of the first {rows}"
    actions = "actions drawn by their probabilities" if options.get("stochastic") else "the most probable actions"
    changes = "".join(
        f", and {name} {value} instead of {record['params'].get(name, getattr(defaults, name))} as in the training"
        for name, value in options.get("params", {}).items()
    )
    return f"{selection} episodes of seed {SEED}, with {actions}{changes}."


def load_demo_policy(name: str) -> Any:
    """Returns a policy that comes with gpuvec; PyTorch is loaded only if its network needs it."""
    with waiting("loading the policy"):
        from gpuvec.learners.policy_files.numpy_policy import NumpyPolicy, needs_torch
        from gpuvec.learners.policy_files.policy_file import read_policy_file

    path = policy_path(name)
    if not needs_torch(read_policy_file(path, "numpy")):
        return NumpyPolicy(path)
    return find_policy(name)


def is_replay(path: Path) -> bool:
    """Returns whether a file exists and is a replay, of any version."""
    from gpuvec.replay.document import HEADER, MAX_PAGE_BYTES

    return path.is_file() and path.stat().st_size <= MAX_PAGE_BYTES and HEADER in path.read_bytes()


def open_page(path: Path, is_wanted: bool) -> None:
    """Opens a page in the user's browser, or says how to open it."""
    uri = path.resolve().as_uri()
    if not open_address(uri, is_wanted):
        print_lines(f"open       {uri}")


def open_address(uri: str, is_wanted: bool) -> bool:
    """Opens an address in the user's browser, and returns whether it did."""
    # Without a screen, `webbrowser` could start a browser for text in this terminal.
    has_screen = sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return is_wanted and has_screen and webbrowser.open(uri)
