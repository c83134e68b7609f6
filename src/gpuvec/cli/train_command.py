"""The commands `gpuvec train` and `gpuvec resume`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from gpuvec.cli.env_lookup import find_own_env, import_own_module
from gpuvec.cli.output_file import require_runs_folder
from gpuvec.cli.population_run import is_population, resume_population, run_population
from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines, print_table
from gpuvec.cli.train_defaults import CommandSettings, base_settings
from gpuvec.cli.training_run import RunOptions, run_training
from gpuvec.errors import DeviceError, StateError
from gpuvec.learners.algorithms import ALGORITHMS, args_from_dict
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.runs.records import CHECKPOINT_EVERY, PYTHON_OBJECTS, SETTINGS, SWEEP, read_record
from gpuvec.learners.runs.sinks import NO_TRACKING, Tracking
from gpuvec.learners.shards.torchrun import Sharding, process_device, read_launch
from gpuvec.python_command import python_command
from gpuvec.registration import find_env_spec

if TYPE_CHECKING:
    from gpuvec.learners.runs.run_writer import RunWriter

COMMAND = "from gpuvec.cli import main; sys.exit(main())"
AlgorithmName = Annotated[str, tyro.conf.arg(metavar=f"{{{','.join(ALGORITHMS)},MODULE:NAME}}")]
MAX_WATCH_SECONDS = 1_000_000
VIDEO_SECONDS = 60.0  # between two videos without `--watch`
CheckpointEvery = Annotated[
    int | None, tyro.conf.arg(help_behavior_hint=f"(default: {CHECKPOINT_EVERY}; of a population one each minute)")
]
WatchSeconds = Annotated[float | None, tyro.conf.arg(help_behavior_hint="(default: never)")]


@dataclass(frozen=True)
class ShardOptions(Sharding):
    """How the environments of a training are divided, as options of the command line."""

    shards: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: 8 with torchrun, 1 without)")] = None
    """The number of parts of the environments that are computed by themselves. The results are equal bit for bit for any number
    of processes that divides it."""


@dataclass(frozen=True)
class GpuProcesses:
    """The processes that a command starts on this machine."""

    gpus: int = 0
    """If above 0, train with so many GPUs of this machine, in a process each, by `torchrun --standalone`."""
    max_restarts: int = 0
    """How often all processes start again after one has failed; they continue from the last checkpoint."""


def train(
    settings: CommandSettings,
    algorithm: AlgorithmName = "ppo",
    runs: Path = Path("runs"),
    checkpoint_every: CheckpointEvery = None,
    tracking: Tracking = NO_TRACKING,
    episodes: int = 100,
    watch: WatchSeconds = None,
    watch_rows: int = 4,
    population: int = 0,
    best: int = 3,
    sharding: ShardOptions = ShardOptions(),
    start: GpuProcesses = GpuProcesses(),
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
    args = settings.args
    options = prepare(start, args.device, checkpoint_every, episodes, watch, watch_rows, tracking)
    find_own_env(args.env)  # an unknown id fails here, before torch is imported
    if args.network is not None:
        import_own_module(args.network, "network")
    require_runs_folder(runs)
    if population:
        if read_launch() is not None:
            raise ValueError("--population trains on one device: start it without torchrun and --gpus.")
        if algorithm != "ppo":
            raise ValueError(f"--population trains by ppo, got --algorithm {algorithm}.")
        if log := " ".join(tracking.log):
            raise ValueError(f"--log {log} is for one policy: the folder of a population has the numbers of all agents.")
        if options.live is not None:
            raise ValueError(
                "--watch and --capture-video are for one policy: watch one of the best agents after the training of the "
                "population."
            )
        base = base_settings(settings)
        if best < 0:
            raise ValueError(f"best must be at least 0, got {best}.")
        with waiting("loading PyTorch"):
            from gpuvec.engine.backends.device import parse_device
            from gpuvec.learners.population.results.population_folder import PopulationWriter

        population_args = PopulationArgs(base, population).resolved(str(parse_device(base.device)))
        return run_population(population_args, PopulationWriter(runs), best, checkpoint_every)
    with waiting("loading PyTorch"):
        from gpuvec.learners.runs.run_writer import RunWriter, interrupted_run, require_same_settings

    if interrupted := interrupted_run():  # of the processes of this job, which torchrun has started again

        def settings_of_run(checkpoint: Mapping[str, Any]) -> dict[str, TrainingArgs]:
            policies = chosen_policies(settings, algorithm, sharding, checkpoint)
            require_same_settings(checkpoint, policies, interrupted.path)
            return policies

        print_lines(f"restarted  {interrupted.path} continues")
        return continue_run(interrupted.path, settings_of_run, sharding.deterministic_shards, options, interrupted.token)
    if (launch := read_launch()) is not None and launch.restarts:
        print_lines("restarted  no run of this job has a checkpoint: the training begins again")
    policies = chosen_policies(settings, algorithm, sharding)

    def open_run() -> RunWriter:
        return RunWriter.new(runs, algorithm, asdict(next(iter(policies.values()))), tracking)

    return run_training(policies, open_run, None, options, sharding)


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
    start: GpuProcesses = GpuProcesses(),
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
    options = prepare(start, "cuda", checkpoint_every, episodes, watch, watch_rows, tracking)
    if is_population(run) or (run / SWEEP).is_file():
        return resume_population(run, total_steps, trust, checkpoint_every)

    def settings_of_run(checkpoint: Mapping[str, Any]) -> dict[str, TrainingArgs]:
        from gpuvec.learners.networks.named_network import find_network
        from gpuvec.learners.runs.checkpoint import require_network_size, require_trained_policies

        require_trained_policies(checkpoint, run)
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

    return continue_run(run, settings_of_run, deterministic_shards, options, trust=trust)


def prepare(
    start: GpuProcesses,
    device: str,
    checkpoint_every: int | None,
    episodes: int,
    watch: float | None,
    watch_rows: int,
    tracking: Tracking,
) -> RunOptions:
    """Checks the options that both commands have, and replaces this process by torchrun if it is to start processes with a GPU.

    Args:
        start: the number of processes, with a GPU each, and of restarts.
        checkpoint_every, episodes, watch, watch_rows, tracking: the options of the commands.

    Raises:
        ValueError: a number out of range, another device than GPUs for processes, or an option for a tracker that is not used.
        DeviceError: there are fewer GPUs.
        MissingExtraError: a package is not installed.
    """
    if (checkpoint_every is not None and checkpoint_every < 1) or episodes < 1:
        raise ValueError(f"checkpoint_every and episodes must be at least 1, got {checkpoint_every} and {episodes}.")
    if start.gpus < 0 or start.max_restarts < 0 or (start.max_restarts and not start.gpus):
        values = f"{start.gpus} and {start.max_restarts}"
        raise ValueError(f"gpus and max_restarts must be at least 0, and restarts are for gpus, got {values}.")
    if start.gpus and read_launch() is None:
        if device not in ("auto", "cuda"):
            raise ValueError(
                f"--gpus {start.gpus} is for GPUs, and the device is {device}. Processes on a CPU are started by `torchrun "
                f"--standalone --nproc-per-node {start.gpus} -m gpuvec ...`."
            )
        from gpuvec.engine.backends.device import parse_device

        try:
            parse_device(f"cuda:{start.gpus - 1}")
        except DeviceError as error:
            raise DeviceError(f"--gpus {start.gpus}: {error}") from error
        command = torchrun_command(sys.argv[1:], start.gpus, start.max_restarts)
        sys.stdout.flush()
        # One thread is enough beside a GPU, and torchrun warns unless the number is set.
        os.execve(command[0], command, {"OMP_NUM_THREADS": "1", **os.environ})  # noqa: S606  # a list of words, without a shell
    if watch_rows < 1 or (watch is not None and not 1.0 <= watch <= MAX_WATCH_SECONDS):
        raise ValueError(
            f"watch must be from 1 to {MAX_WATCH_SECONDS:,} seconds and watch_rows at least 1, got {watch} and {watch_rows}."
        )
    tracking.require_packages()
    live = None
    if watch is not None or tracking.capture_video:
        from gpuvec.replay.live.process import LiveSettings
        from gpuvec.replay.video import require_encoder

        for suffix in tracking.video_suffixes:
            require_encoder(suffix)
        live = LiveSettings(watch or VIDEO_SECONDS, watch_rows, tracking.video_suffixes)
    return RunOptions(tracking, checkpoint_every, episodes, live)


def torchrun_command(arguments: Sequence[str], processes: int, max_restarts: int) -> list[str]:
    """Returns the command that runs `gpuvec` in several processes of this machine.

    Args:
        arguments: the words after `gpuvec`.
        max_restarts: how often torchrun starts all processes again after one has failed.
    """
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}"]
    python, *words = python_command(COMMAND, *arguments)
    # As torchrun starts Python itself, the output is not buffered.
    return [sys.executable, "-P", "-m", "torch.distributed.run", *options, "--no-python", python, "-u", *words]


def chosen_policies(
    settings: CommandSettings, algorithm: str, sharding: Sharding, checkpoint: Mapping[str, Any] | None = None
) -> dict[str, TrainingArgs]:
    """Returns {role: settings}, with values for the device of this process, and prints what `--num-envs auto` measured.

    Args:
        checkpoint: that of a run which continues, whose sizes are those that were measured; None for a new one.
    """
    from gpuvec.learners.environments import policy_roles, resolve_args

    args = settings.args
    roles = policy_roles(args.env, args.params, algorithm)
    if settings.measures_num_envs and checkpoint is not None:
        measured = next(iter(checkpoint["args"].values()))
        args = replace(args, num_envs=measured["num_envs"], num_steps=settings.num_steps or measured["num_steps"])
    elif settings.measures_num_envs:
        with waiting("measuring how many environments make most steps per second"):
            from gpuvec.learners.autoscale import autoscale

            scale = autoscale(dict.fromkeys(roles, args), num_steps=settings.num_steps, **asdict(sharding))
        rows = [["envs", "rollout", "steps/s", "memory", ""]]
        for trial in scale.trials:
            speed = "-" if trial.steps_per_second is None else f"{trial.steps_per_second:,.0f}"
            memory = "-" if trial.num_bytes is None else f"{trial.num_bytes / 2**20:,.0f} MB"
            is_chosen = (trial.num_envs, trial.num_steps) == (scale.num_envs, scale.num_steps)
            note = "chosen" if is_chosen else trial.reason and f"not run: {trial.reason}"
            rows.append([f"{trial.num_envs:,}", f"{trial.num_steps:,}", speed, memory, note])
        print_table(rows)
        args = replace(args, num_envs=scale.num_envs, num_steps=scale.num_steps)
    return dict.fromkeys(roles, resolve_args(args, process_device(args.device)))


def continue_run(
    run: Path,
    settings_of_run: Callable[[Mapping[str, Any]], dict[str, TrainingArgs]],
    deterministic_shards: bool,
    options: RunOptions,
    token: str | None = None,
    trust: bool = False,
) -> int:
    """Continues a run from its newest checkpoint, and returns the exit status.

    Args:
        settings_of_run: returns {role: settings} for a checkpoint, after checks of it.
        deterministic_shards: whether the parts of several processes are added in a fixed order.
        token: as in `RunRecorder`.
        trust: whether the modules that the checkpoint names may be imported, which runs their code.

    Raises:
        FileNotFoundError: it is not a run folder.
        RunInUseError: another training writes to it.
        StateError: the run is complete, or has objects of Python that no file contains.
        CheckpointError: a file is damaged, or a module is not trusted.
    """
    with waiting("loading PyTorch"):
        from gpuvec.learners.runs.checkpoint import load_newest
        from gpuvec.learners.runs.folder import RunFolder
        from gpuvec.learners.runs.run_writer import RunWriter, changed_versions, recorded_sync
        from gpuvec.learners.runs.sinks import read_metric_lines

    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(run))
        if SETTINGS not in folder.file_names():
            raise FileNotFoundError(
                f"{folder.path} is not a run folder: it has no {SETTINGS}. Give a folder that `gpuvec train` created."
            )
        launch = read_launch()
        if launch is None or launch.rank == 0:  # the process that writes to it
            folder.lock()
        checkpoint = load_newest(folder, trust)
        policies = settings_of_run(checkpoint)
        args = next(iter(policies.values()))
        if checkpoint["iteration"] >= args.iterations:
            raise StateError(
                f"{run} is complete, with {args.iterations} iterations: give a larger --total-steps to continue it."
            )
        record = read_record(folder, SETTINGS)
        for name in PYTHON_OBJECTS:
            if value := record.get(name):
                raise StateError(
                    f"{run} was trained with {name}={str(value)[:200]}, an object of Python, which no file contains: "
                    f"continue it in Python, by train(..., {name}=..., run_folder=...)."
                )
        for name, (before, now) in changed_versions(folder).items():
            print_lines(f"{name} was {before} and is {now} now: numbers may differ from those of a run that was not stopped")
        read_metric_lines(folder, checkpoint["iteration"])  # raises an error for damaged metrics before training, and not after

        def open_run() -> RunWriter:
            own = {name: value for name, value in record.items() if name in ("algorithm", "policies")}
            writer = RunWriter(folder, {**own, **asdict(args)}, options.tracking, checkpoint["iteration"])
            stack.pop_all()  # from here on, the writer closes the folder
            return writer

        sharding = Sharding(1 + len(checkpoint.get("shards", ())), deterministic_shards, recorded_sync(folder))
        return run_training(policies, open_run, checkpoint, options, sharding, token)
