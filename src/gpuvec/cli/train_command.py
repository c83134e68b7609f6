"""The commands `gpuvec train` and `gpuvec resume`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gpuvec.cli.env_lookup import find_own_env, import_own_module
from gpuvec.cli.output_file import require_runs_folder
from gpuvec.cli.population_run import base_settings, is_population, new_population, resume_population
from gpuvec.cli.processes import GpuProcesses, ShardOptions, start_on_gpus
from gpuvec.cli.progress import waiting
from gpuvec.cli.scale_choice import choose_scale
from gpuvec.cli.sweep_command import is_search, resume_search
from gpuvec.cli.terminal import print_lines
from gpuvec.cli.train_defaults import chosen_settings, is_autoscaled
from gpuvec.cli.training_run import run_training
from gpuvec.errors import StateError
from gpuvec.learners.algorithms import ALGORITHMS, args_class, args_from_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.config.tuned import tuned
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.runs.records import CHECKPOINT_EVERY, PYTHON_OBJECTS, SETTINGS, read_record
from gpuvec.learners.runs.sinks import NO_TRACKING, Tracking
from gpuvec.learners.shards.torchrun import Sharding, process_device, read_launch
from gpuvec.registration import find_env_spec

if TYPE_CHECKING:
    from gpuvec.learners.runs.folder import RunFolder
    from gpuvec.learners.runs.run_writer import RunWriter
    from gpuvec.replay.live.process import LiveSettings

AlgorithmName = Annotated[str, tyro.conf.arg(metavar=f"{{{','.join(ALGORITHMS)},MODULE:NAME}}")]
MAX_WATCH_SECONDS = 1_000_000
VIDEO_SECONDS = 60.0  # between two videos without `--watch`
CheckpointEvery = Annotated[
    int | None, tyro.conf.arg(help_behavior_hint=f"(default: {CHECKPOINT_EVERY}; of a population one each minute)")
]
WatchSeconds = Annotated[float | None, tyro.conf.arg(help_behavior_hint="(default: never)")]


def train(
    settings: TrainingArgs,
    algorithm: AlgorithmName = "ppo",
    runs: Path = Path("runs"),
    checkpoint_every: CheckpointEvery = None,
    tracking: Tracking = NO_TRACKING,
    episodes: int = 100,
    watch: WatchSeconds = None,
    watch_rows: int = 4,
    population: int = 0,
    best: int = 3,
    sharding: ShardOptions = ShardOptions(),  # noqa: B008  # it is not mutated
    start: GpuProcesses = GpuProcesses(),  # noqa: B008  # it is not mutated
) -> int:
    """Train a policy, write a run folder, and evaluate the result.

    The environment may be the first word: `gpuvec train CartPole-v1`. Ctrl-C stops the training after the current iteration and
    writes a checkpoint. `gpuvec resume` continues it.

    Args:
        settings: the settings of the algorithm. Those that you do not set are tuned for the environment. `--num-envs auto`
            measures which number of environments, and which length of rollouts, make most steps per second.
        algorithm: ppo (proximal policy optimisation), a2c (advantage actor-critic), for continuous actions ddpg (deep
            deterministic policy gradient) or td3 (DDPG with two critics), or module:name for one that a module of yours
            registers. Each has its own settings: `gpuvec train --algorithm td3 --help` lists them.
        runs: the folder in which the run folder is created.
        checkpoint_every: iterations between two checkpoints. There is always one at the end; the last two are kept, and of a
            population the last one.
        tracking: where metrics and videos are sent.
        episodes: the number of episodes in the evaluation at the end, which takes the likeliest actions.
        watch: seconds between two live replays, which a process of low priority records on the CPU; `gpuvec watch RUN --live`
            shows them. Without it there are none.
        watch_rows: the number of environments of a live replay.
        population: if above 0, train so many agents at once, each on its own with num_envs environments (by default few) and
            total_steps steps, with the seeds from --seed on. The folder has the numbers of all agents, and run folders of the
            best ones.
        best: the number of the best agents of a population that get a run folder.
        sharding: how the environments are divided between several processes.
        start: the processes that this command starts.
    """
    require_positive(checkpoint_every, episodes)
    start_on_gpus(start, settings.device)
    live = live_settings(watch, watch_rows, tracking)
    find_own_env(settings.env)  # an unknown id fails here, before torch is imported
    if settings.network is not None:
        import_own_module(settings.network, "network")
    require_runs_folder(runs)
    if population:
        refuse_for_population(algorithm, tracking.log, live is not None, is_autoscaled(settings))
        return _train_population(settings, population, runs, best, checkpoint_every)
    return _train_policies(settings, algorithm, sharding, runs, tracking, checkpoint_every, episodes, live)


def _train_policies(
    settings: TrainingArgs,
    algorithm: str,
    sharding: Sharding,
    runs: Path,
    tracking: Tracking,
    checkpoint_every: int | None,
    episodes: int,
    live: LiveSettings | None,
) -> int:
    """Trains from the beginning, or from where the processes of this job were that torchrun has started again."""
    with waiting("loading PyTorch"):
        from gpuvec.learners.runs.run_writer import RunWriter, interrupted_run, require_same_settings

    if interrupted := interrupted_run():

        def settings_of_run(checkpoint: Mapping[str, Any]) -> dict[str, TrainingArgs]:
            policies = _chosen_policies(settings, algorithm, sharding, checkpoint)
            require_same_settings(checkpoint, policies, interrupted.path)
            return policies

        print_lines(f"restarted  {interrupted.path} continues")
        return _continue_run(
            interrupted.path, settings_of_run, sharding.deterministic_shards, tracking, checkpoint_every, episodes, live,
            interrupted.token,
        )  # fmt: skip
    if (launch := read_launch()) is not None and launch.restarts:
        print_lines("restarted  no run of this job has a checkpoint: the training begins again")
    policies = _chosen_policies(settings, algorithm, sharding)
    args = next(iter(policies.values()))

    def open_run() -> RunWriter:
        return RunWriter.new(runs, algorithm, asdict(args), tracking)

    return run_training(policies, open_run, None, checkpoint_every or CHECKPOINT_EVERY, episodes, live, sharding)


def _chosen_policies(
    settings: TrainingArgs, algorithm: str, sharding: Sharding, checkpoint: Mapping[str, Any] | None = None
) -> dict[str, TrainingArgs]:
    """The settings of each role, with values for the device of this process; sizes that were measured are in the checkpoint."""
    from gpuvec.learners.environments import policy_roles, resolve_args

    args = chosen_settings(settings, args_class(algorithm), tuned(settings.env, settings.device, algorithm))
    roles = policy_roles(args.env, args.params, algorithm)
    if is_autoscaled(settings) and checkpoint is None:
        args = choose_scale(args, roles, settings.num_steps, sharding)
    elif is_autoscaled(settings) and checkpoint is not None:
        measured = next(iter(checkpoint["args"].values()))
        num_steps = settings.num_steps or measured["num_steps"]
        args = replace(args, num_envs=measured["num_envs"], num_steps=num_steps)
    return dict.fromkeys(roles, resolve_args(args, process_device(settings.device)))


def refuse_for_population(algorithm: str, log: Sequence[str], has_live_replays: bool, is_autoscaled: bool) -> None:
    """Refuses options that are for one policy.

    Args:
        algorithm: the name of the algorithm.
        log: where metrics would be sent.
        has_live_replays: whether live replays are wanted.
        is_autoscaled: whether the number of environments is to be measured.

    Raises:
        ValueError: such an option is set.
    """
    if read_launch() is not None:
        raise ValueError("--population trains on one device: start it without torchrun and --gpus.")
    if algorithm != "ppo":
        raise ValueError(f"--population trains by ppo, got --algorithm {algorithm}.")
    if log:
        raise ValueError(f"--log {' '.join(log)} is for one policy: the folder of a population has the numbers of all agents.")
    if has_live_replays:
        raise ValueError(
            "--watch and --capture-video are for one policy: watch one of the best agents after the training of the population."
        )
    if is_autoscaled:
        raise ValueError("--num-envs auto is for one policy: give the number of environments of an agent.")


def _train_population(settings: TrainingArgs, num_agents: int, runs: Path, best: int, checkpoint_every: int | None) -> int:
    """Trains a population with the settings of the command line."""
    if best < 0:
        raise ValueError(f"best must be at least 0, got {best}.")
    with waiting("loading PyTorch"):
        from gpuvec.engine.backends.device import parse_device

    args = PopulationArgs(base_settings(settings), num_agents).resolved(str(parse_device(settings.device)))
    return new_population(args, runs, best, checkpoint_every)


def resume(
    run: Annotated[Path, tyro.conf.Positional],
    total_steps: int | None = None,
    checkpoint_every: CheckpointEvery = None,
    tracking: Tracking = NO_TRACKING,
    episodes: int = 100,
    watch: WatchSeconds = None,
    watch_rows: int = 4,
    trust: bool = False,
    deterministic_shards: bool = True,
    start: GpuProcesses = GpuProcesses(),  # noqa: B008  # it is not mutated
) -> int:
    """Continue a training that was stopped, from its newest checkpoint.

    The result has the same numbers as a training that was not stopped.

    Args:
        run: the run folder. Metrics that were written after the checkpoint are removed and written again.
        total_steps: a new total number of environment steps. Values that change over time, such as the learning rate, then
            follow the new total. By default the total that the run was started with.
        checkpoint_every: iterations between two checkpoints.
        tracking: where metrics and videos are sent.
        episodes: the number of episodes in the evaluation at the end.
        watch: seconds between two live replays, which `gpuvec watch RUN --live` shows. Without it there are none.
        watch_rows: the number of environments of a live replay.
        trust: import the Python modules that the checkpoint names for its environment, algorithm and network. Importing runs
            their code.
        deterministic_shards: add the parts of several processes in a fixed order.
        start: the processes that this command starts; their number must divide that of the shards of the run.
    """
    require_positive(checkpoint_every, episodes)
    start_on_gpus(start, "cuda")
    live = live_settings(watch, watch_rows, tracking)
    if is_search(run) or is_population(run):
        return (resume_search if is_search(run) else resume_population)(run, total_steps, trust, checkpoint_every)

    def settings_of_run(checkpoint: Mapping[str, Any]) -> dict[str, TrainingArgs]:
        return _settings_to_resume(checkpoint, run, total_steps)

    return _continue_run(
        run, settings_of_run, deterministic_shards, tracking, checkpoint_every, episodes, live, trust=trust
    )  # fmt: skip


def _continue_run(
    run: Path,
    settings_of_run: Callable[[Mapping[str, Any]], dict[str, TrainingArgs]],
    deterministic_shards: bool,
    tracking: Tracking,
    checkpoint_every: int | None,
    episodes: int,
    live: LiveSettings | None,
    token: str | None = None,
    trust: bool = False,
) -> int:
    """Continues a run from its newest checkpoint; `settings_of_run` returns {role: settings} after checks of it."""
    with waiting("loading PyTorch"):
        from gpuvec.learners.runs.checkpoint import load_newest
        from gpuvec.learners.runs.folder import RunFolder
        from gpuvec.learners.runs.run_writer import RunWriter, changed_versions, recorded_sync
        from gpuvec.learners.runs.sinks import read_metric_lines

    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(run))
        lock_run(folder)
        checkpoint = load_newest(folder, trust)
        policies = settings_of_run(checkpoint)
        args = next(iter(policies.values()))
        if checkpoint["iteration"] >= args.iterations:
            raise StateError(
                f"{run} is complete, with {args.iterations} iterations: give a larger --total-steps to continue it."
            )
        for name in PYTHON_OBJECTS:
            if value := read_record(folder, SETTINGS).get(name):
                raise StateError(
                    f"{run} was trained with {name}={str(value)[:200]}, an object of Python, which no file contains: "
                    f"continue it in Python, by train(..., {name}=..., run_folder=...)."
                )
        print_changes(changed_versions(folder))
        read_metric_lines(folder, checkpoint["iteration"])  # raises an error for damaged metrics before training, and not after

        def open_run() -> RunWriter:
            own = {name: value for name, value in read_record(folder, SETTINGS).items() if name in ("algorithm", "policies")}
            writer = RunWriter(folder, {**own, **asdict(args)}, tracking, checkpoint["iteration"])
            stack.pop_all()  # from here on, the writer closes the folder
            return writer

        sharding = Sharding(1 + len(checkpoint.get("shards", ())), deterministic_shards, recorded_sync(folder))
        return run_training(
            policies, open_run, checkpoint, checkpoint_every or CHECKPOINT_EVERY, episodes, live, sharding, token
        )  # fmt: skip


def lock_run(folder: RunFolder) -> None:
    """Locks a run folder in the process that writes to it.

    Args:
        folder: the run folder.

    Raises:
        FileNotFoundError: it is not a run folder.
        RunInUseError: another training writes to it.
    """
    if SETTINGS not in folder.file_names():
        raise FileNotFoundError(
            f"{folder.path} is not a run folder: it has no {SETTINGS}. Give a folder that `gpuvec train` created."
        )
    launch = read_launch()
    if launch is None or launch.rank == 0:
        folder.lock()


def print_changes(changes: Mapping[str, tuple[str | None, str | None]]) -> None:
    """Prints which packages have other versions than at the start of a run.

    Args:
        changes: {package: (version in the run, version now)}.
    """
    for name, (before, now) in changes.items():
        print_lines(f"{name} was {before} and is {now} now: numbers may differ from those of a run that was not stopped")


def _settings_to_resume(checkpoint: Mapping[str, Any], path: Path, total_steps: int | None) -> dict[str, TrainingArgs]:
    """The settings of each role with which a checkpoint continues, after checks that need them; `path` is that of the run.

    Raises:
        StateError: a policy was not trained, or its network is not a class of a module.
        CheckpointError: the settings need a larger network than there is.
        gymnasium.error.Error: there is no such environment.
    """
    from gpuvec.learners.networks.named_network import find_network
    from gpuvec.learners.runs.checkpoint import require_network_size, require_trained_policies

    require_trained_policies(checkpoint, path)
    policies = {role: args_from_dict(settings) for role, settings in checkpoint["args"].items()}
    for role, args in policies.items():
        require_network_size(args, checkpoint["policies"][role]["network"])
        if args.network is not None:
            find_network(args.network)
    if total_steps is not None:
        policies = {role: replace(args, total_steps=total_steps) for role, args in policies.items()}
    if (launch := read_launch()) is not None and launch.size > 1:  # each process has the GPU of its number
        policies = {role: replace(args, device=args.device.partition(":")[0]) for role, args in policies.items()}
        device = process_device(next(iter(policies.values())).device)
        policies = {role: args.resolved(device) for role, args in policies.items()}
    find_env_spec(next(iter(policies.values())).env)
    return policies


def require_positive(checkpoint_every: int | None, episodes: int) -> None:
    """Raises ValueError unless both options are at least 1.

    Args:
        checkpoint_every: iterations between two checkpoints; None for the default.
        episodes: the number of episodes in the evaluation.
    """
    if (checkpoint_every is not None and checkpoint_every < 1) or episodes < 1:
        raise ValueError(f"checkpoint_every and episodes must be at least 1, got {checkpoint_every} and {episodes}.")


def live_settings(seconds: float | None, rows: int, tracking: Tracking) -> LiveSettings | None:
    """Returns how often live replays are saved, or None for never, after checks of what they and the trackers need.

    Args:
        seconds: between two replays; None for never.
        rows: the number of environments of a replay.
        tracking: whether they have videos.

    Raises:
        ValueError: a number is out of range, or an option is for a tracker that is not used.
        MissingExtraError: a package is not installed.
    """
    if rows < 1 or (seconds is not None and not 1.0 <= seconds <= MAX_WATCH_SECONDS):
        raise ValueError(
            f"watch must be from 1 to {MAX_WATCH_SECONDS:,} seconds and watch_rows at least 1, got {seconds} and {rows}."
        )
    tracking.require_packages()
    if seconds is None and not tracking.capture_video:
        return None
    from gpuvec.replay.live.process import LiveSettings
    from gpuvec.replay.video import require_encoder

    for suffix in tracking.video_suffixes:
        require_encoder(suffix)
    return LiveSettings(seconds or VIDEO_SECONDS, rows, tracking.video_suffixes)
