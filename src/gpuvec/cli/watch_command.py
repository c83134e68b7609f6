"""The commands `gpuvec watch` and `gpuvec demo`."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from gpuvec.cli.output_file import require_writable
from gpuvec.cli.progress import waiting
from gpuvec.learners.runs.records import FAILURE
from gpuvec.policies import policy_names, policy_path

DEMO = "CartPole-v1"
DEFAULT_PORT, MAX_PORT = 8765, 65535


def watch(
    policies: Annotated[tuple[str, ...], tyro.conf.Positional],
    rows: int = 4,
    seed: int = 0,
    steps: int | None = None,
    to: Path = Path("replay.html"),
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
            file *.html is a replay itself and is opened as it is.
        rows: the number of environments of each policy; an episode of each is recorded.
        seed: the seed of the environments.
        steps: the number of steps after which a recording is complete; by default that of the episode.
        to: the file to write.
        stochastic: draw actions from the policy instead of taking the likeliest action.
        device: auto, cpu, cuda or cuda:1.
        open: whether a browser opens the file, if there is one.
        trust: import the Python module that a policy names for its environment. Importing runs the module's code.
        force: replace the file if it exists.
        live: serve the live replays of one run folder, and refresh the page by itself.
        port: of the live view on the loopback address, 127.0.0.1; 0 for one that is free.
    """
    if not policies:
        raise ValueError(f"name at least one policy: a run folder, a policy file, or one of {', '.join(policy_names())}.")
    if live:
        return watch_live(policies, port, open)
    policies = open_replays(policies, open)
    if not policies:
        return 0
    for name, number in (("rows", rows), ("steps", steps)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}.")
    require_writable(to, force)
    with waiting("loading PyTorch"):
        from gpuvec.cli.policy_lookup import find_policy

    trained = [find_policy(name, device, trust) for name in policies]
    return record_and_open(policies, trained, to, open, rows=rows, seed=seed, max_steps=steps, stochastic=stochastic)


def record_and_open(
    names: Sequence[str], policies: Sequence[Any], to: Path, is_wanted: bool, rows: int = 4, **options: Any
) -> int:
    """Writes a replay of policies and opens it, and returns the exit status.

    Args:
        names: of the policies in the replay.
        policies: who acts.
        to: the file to write.
        is_wanted: whether a browser is to open it.
        rows: the number of environments of each policy.
        options: of `record_policy`.
    """
    from gpuvec import replay
    from gpuvec.replay.recording import record_policy

    scenes = []
    for name, policy in zip(names, policies, strict=True):
        with waiting(f"compiling {policy.env}, and recording {rows} of its episodes"):
            scenes += record_policy(policy, name, rows=rows, **options)
    path = replay.write(to, scenes)
    print(f"wrote      {path}: {len(scenes)} episodes, {path.stat().st_size / 1024:.0f} kB")
    open_page(path, is_wanted)
    return 0


def open_replays(names: tuple[str, ...], is_wanted: bool) -> tuple[str, ...]:
    """Opens the replays among what the command line names, and returns the rest.

    A run that ended with a number that is not finite has a replay of it, which is opened instead of recording its checkpoint.

    Args:
        names: paths, or names of policies.
        is_wanted: whether a browser is to open them.

    Raises:
        ReplayError: a file is not a complete replay.
        OSError: it cannot be read.
    """
    from gpuvec.replay import read_replay

    replays = {name: Path(name) for name in names if name.endswith(".html")}
    replays |= {name: path for name in names if (path := Path(name, FAILURE)).is_file()}
    for path in replays.values():
        read_replay(path)
    for name, path in replays.items():
        if path.name == FAILURE:
            print(f"failure    {name} ended with a number that is not finite; name a checkpoint in it to watch its policy")
        open_page(path, is_wanted)
    return tuple(name for name in names if name not in replays)


def watch_live(runs: tuple[str, ...], port: int, is_wanted: bool) -> int:
    """Serves the live view of a run until Ctrl-C.

    Args:
        runs: the path of the run folder.
        port: of the loopback address; 0 for one that is free.
        is_wanted: whether a browser is to open the page.

    Raises:
        ValueError: several runs, or a port that does not exist.
        CheckpointError: the folder is not that of a run, or has no live replays.
        ServerError: the port cannot be used.
    """
    if len(runs) != 1:
        raise ValueError(f"--live shows one run folder, got {', '.join(runs)}.")
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"port must be from 0 to {MAX_PORT}, got {port}.")
    from gpuvec.learners.runs.folder import RunFolder
    from gpuvec.replay.live.files import require_live_replays
    from gpuvec.replay.live.server import LiveServer

    with RunFolder(runs[0]) as folder:
        require_live_replays(folder)
        with LiveServer(folder, port) as server:
            print(f"live       {server.url}   (Ctrl-C ends it)", flush=True)
            open_address(server.url, is_wanted)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print("stopped")
    return 0


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
        print("\n".join(policy_names()))
        return 0
    if policy not in policy_names():
        raise ValueError(f"there is no demo {policy!r}; those that come with gpuvec are {', '.join(policy_names())}.")
    path = to or Path(f"demo-{policy}.html")
    require_writable(path, force or (to is None and is_replay(path)))
    return record_and_open([policy], [load_demo_policy(policy)], path, open)


def load_demo_policy(name: str) -> Any:
    """Returns a policy that comes with gpuvec; PyTorch is loaded only if its network needs it.

    Args:
        name: of the policy.
    """
    with waiting("loading the policy"):
        from gpuvec.learners.policy_files.numpy_policy import NumpyPolicy, needs_torch

    path = policy_path(name)
    if not needs_torch(path):
        return NumpyPolicy(path)
    with waiting("loading PyTorch"):
        from gpuvec.cli.policy_lookup import find_policy

    return find_policy(name)


def is_replay(path: Path) -> bool:
    """Returns whether a file exists and is a replay, of any version.

    Args:
        path: of the file.
    """
    return path.is_file() and b'id="replay-header"' in path.read_bytes()


def open_page(path: Path, is_wanted: bool) -> None:
    """Opens a page in the user's browser, or says how to open it.

    Args:
        path: of the page.
        is_wanted: whether a browser is to open it.
    """
    uri = path.resolve().as_uri()
    if not open_address(uri, is_wanted):
        print(f"open       {uri}")


def open_address(uri: str, is_wanted: bool) -> bool:
    """Opens an address in the user's browser, and returns whether it did.

    Args:
        uri: the address.
        is_wanted: whether a browser is to open it.
    """
    # Without a screen, `webbrowser` could start a browser for text in this terminal.
    has_screen = sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return is_wanted and has_screen and webbrowser.open(uri)
