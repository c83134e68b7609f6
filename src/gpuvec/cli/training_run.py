"""Runs a training for `gpuvec train` and `gpuvec resume`, with its display, its run folder and the evaluation at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuvec.cli.eval_command import parameters_line, result_lines, solved_text
from gpuvec.cli.progress import Progress, waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.errors import GpuvecError, NonFiniteError
from gpuvec.learners.algorithms import algorithm_name
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.metric_names import ENV_METRICS
from gpuvec.learners.runs.records import CHECKPOINT_EVERY
from gpuvec.learners.runs.sinks import Tracking
from gpuvec.learners.shards.torchrun import Sharding
from gpuvec.registration import find_env_spec, load_env
from gpuvec.replay.live.files import file_name

if TYPE_CHECKING:
    from gpuvec.learners.learner import Learner
    from gpuvec.learners.runs.run_writer import RunRecorder, RunWriter
    from gpuvec.replay.live.process import LiveReplays, LiveSettings


NUM_STATES = 100  # of the replay of a training that met a number that is not finite


class RunOptions(NamedTuple):
    """What a command does with a training besides learning."""

    tracking: Tracking
    checkpoint_every: int | None  # iterations; None for the default
    episodes: int  # of the evaluation at the end
    live: LiveSettings | None  # how often live replays are saved; None for never


class CommandRecorder:
    """Shows the metrics of a training, and records live replays, besides what is written to the run folder.

    Args:
        recorder: writes the run folder.
        live: how often live replays are saved; None for never.
    """

    def __init__(self, recorder: RunRecorder, progress: Progress, live: LiveSettings | None = None) -> None:
        self._recorder, self._progress, self._live_settings = recorder, progress, live
        self.live_replays: LiveReplays | None = None

    def record(self, learner: Learner, metrics: dict[str, float]) -> None:
        """Writes the metrics of an iteration, and a checkpoint if one is due.

        Args:
            learner: the learner, which may be one iteration ahead of the metrics.
            metrics: the metrics of the iteration.

        Raises:
            KeyboardInterrupt: the process received a signal.
        """
        is_new, run = self._recorder.run is None, self._recorder.open()
        if run is not None:
            if is_new:
                print_lines(f"run        {run.path}")
                option = "" if self._live_settings is None else " --live"
                print_lines(f"watch      gpuvec watch {run.path}{option}")
            if is_new and self._live_settings is not None:
                from gpuvec.replay.live.process import LiveReplays

                def print_problem(text: str) -> None:
                    print_lines(f"gpuvec: {text}", is_error=True)

                self.live_replays = LiveReplays(run.path, learner, self._live_settings, print_problem)
            run.log(metrics)
        if self.live_replays is not None:
            self.live_replays.update()
            self._log_videos(self.live_replays)
        self._progress.update(metrics, learner.stage_timer.seconds(), learner.single_graph)
        self._recorder.save_if_due(learner, metrics)

    def save_last(self, checkpoint: Mapping[str, Any]) -> RunWriter:
        """Writes the final checkpoint, and begins to record the final policies if there are live replays.

        Returns:
            The run folder.
        """
        run = self._recorder.save_last(checkpoint)
        if self.live_replays is not None:
            networks = {role: checkpoint["policies"][role]["network"] for role in checkpoint["args"]}
            self.live_replays.save_last(networks, checkpoint["iteration"])
        return run

    def end_live_replays(self, wait: bool = False) -> None:
        """Ends the process that records live replays, if there is one.

        Args:
            wait: whether it records the last one before.
        """
        if self.live_replays is not None:
            with waiting("recording the last live replay"):
                self.live_replays.close(wait)
            self._log_videos(self.live_replays)
            self.live_replays = None

    def _log_videos(self, live_replays: LiveReplays) -> None:
        """Sends the videos that have been recorded to the trackers of the run."""
        for iteration in live_replays.take_videos():
            if self._recorder.run is not None:
                self._recorder.run.log_video(file_name(iteration, ""), iteration)


def run_training(
    policies: Mapping[str, TrainingArgs],
    open_run: Callable[[], RunWriter],
    checkpoint: Mapping[str, Any] | None,
    options: RunOptions,
    sharding: Sharding,
    token: str | None = None,
) -> int:
    """Trains, writes the run folder, evaluates the result, prints its returns, and completes the run folder with them.

    Args:
        policies: {role: settings, resolved}.
        open_run: creates or opens the run folder.
        checkpoint: the checkpoint from which the run continues; None for a new run.
        token: as in `RunRecorder`.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended the training.
    """
    args, (_, checkpoint_every, episodes, live) = next(iter(policies.values())), options
    if live is not None and live.videos and load_env(find_env_spec(args.env).kwargs["env"]).draw is None:
        raise ValueError(
            f"--capture-video has nothing to show: {args.env} draws no pictures. Give the environment a function `draw`, or "
            "leave the option out."
        )
    with waiting("loading PyTorch"):
        from gpuvec.learners.evaluation.evaluate import run_episodes
        from gpuvec.learners.evaluation.players import policies_by_role
        from gpuvec.learners.runs.run_writer import RunRecorder
        from gpuvec.learners.seeds import EVALUATION, stream_seed
        from gpuvec.learners.shards.join import join_processes
        from gpuvec.learners.training import train

    every = checkpoint_every or CHECKPOINT_EVERY
    with ExitStack() as stack:
        processes = stack.enter_context(join_processes(args.device))
        processes.require_equal({"checkpoint_every": str(every)})  # all gather a checkpoint at the same time
        recorder = stack.enter_context(closing(RunRecorder(open_run, every, sharding, processes, token)))
        algorithms = (algorithm_name(each).rpartition(":")[2].upper() for each in policies.values())
        names = " and ".join(dict.fromkeys(algorithms))
        device = args.device.partition(":")[0] + f" in {processes.size} processes" if processes.size > 1 else args.device
        title = f"{names} on {args.env}, {args.num_envs} environments on {device}, seed {args.seed}"
        progress = Progress(title, args.iterations, may_end_early=args.target_return is not None)
        command = CommandRecorder(recorder, progress, live)
        stack.callback(command.end_live_replays)
        try:
            with deferred_signals() as recorder.received_signal, progress:
                result = train(
                    policies, command.record, checkpoint, on_phase=progress.wait_for, exact_at=recorder.is_checkpoint_due,
                    shards=sharding.shards, deterministic_shards=sharding.deterministic_shards, sync=sharding.sync,
                )  # fmt: skip
            if processes.rank:
                return 0
            run = command.save_last(result.checkpoint)
        except NonFiniteError as error:
            # With the traceback of the error, which has the learner, its memory is free for another one.
            fault = NonFiniteError(str(error), error.location)
        except KeyboardInterrupt:
            if not recorder.stop_signal:
                raise
            if (last := recorder.last_checkpoint) is not None:
                iterations = f"{last.stem.partition('-')[2]} of {args.iterations} iterations"
                print_lines(f"stopped    after {iterations}; to continue: gpuvec resume {last.parent}")
            # torchrun ends the other processes when one has ended, which must not be before the first one has saved.
            processes.wait_for_all()
            return 128 + recorder.stop_signal
        else:
            params, seed = args.evaluate_params, stream_seed(args.seed, EVALUATION)
            player = policies_by_role(result.networks, seed=seed)
            results = run_episodes(args.env, player, episodes=episodes, seed=seed, device=args.device, params=params)
            returns, last_metrics = results.returns, result.history[-1]
            means = {f"{ENV_METRICS}/{name}": float(values.double().mean()) for name, values in results.metrics.items()}
            ending = {"iteration": last_metrics["iteration"], "ended_by": result.ended_by}
            run.finish({**ending, "episodes": episodes, "params": params, "mean_return": float(returns.mean()), **means})
            details = f"lowest {returns.min():.1f}{solved_text(args.env, params)}"
            print_lines(f"trained    {last_metrics['steps']:,.0f} steps in {last_metrics['seconds']:.1f} s")
            print_lines(f"evaluated  mean return {returns.mean():.1f} over {episodes} episodes ({details})")
            print_lines(parameters_line(params, args.params), *result_lines(results), f"run        {run.path}")
            command.end_live_replays(wait=True)
            return 0
        raise NonFiniteError(f"{fault} {explain_fault(recorder, fault, policies, checkpoint)}", fault.location)


def explain_fault(
    recorder: RunRecorder, fault: NonFiniteError, policies: Mapping[str, TrainingArgs], checkpoint: Mapping[str, Any] | None
) -> str:
    """Saves the last states of the row that broke in the run folder, and returns what a user can look at after a fault.

    Args:
        fault: what ended the training.
        checkpoint: the checkpoint from which the run continued; None for a new run.
    """
    from gpuvec.learners.fault_recording import num_iterations_before, record_fault
    from gpuvec.learners.runs.checkpoint import list_checkpoints, load
    from gpuvec.replay.document import to_page
    from gpuvec.replay.recording import make_failure_replay

    previous = recorder.last_checkpoint or (checkpoint and "that from which the run continued")
    hint = f"The previous checkpoint is {previous}." if previous else "No checkpoint was written before."
    location = fault.location
    if location is None or (run := recorder.open()) is None:
        return hint
    if recorder.num_shards > 1:
        return f"{hint} A training of several shards has no replay of it."
    try:
        with waiting("training again from a checkpoint, to record the states before the failure (Ctrl-C leaves it out)"):
            # From the newest checkpoint after which enough states follow, or else the oldest.
            start, num_steps = checkpoint, next(iter(policies.values())).num_steps
            last = location.iteration - 1 - num_iterations_before(num_steps, NUM_STATES)
            if last > 0:
                newest_first = [load(path) for path in reversed(list_checkpoints(run.path))]
                old_enough = [each for each in newest_first if each["iteration"] <= last]
                start = next(iter(old_enough or newest_first[-1:]), checkpoint)
            recording = record_fault(policies, location, start, num_states=NUM_STATES)
        if recording is None:
            return f"{hint} A training from the checkpoint before did not meet it, so there is no replay."
        path = run.save_failure(to_page(make_failure_replay(recording)).encode())
    except KeyboardInterrupt:
        return f"{hint} Its replay was left out."
    except (GpuvecError, RuntimeError) as error:
        return f"{hint} It cannot be replayed: {error}"
    num_states = len(recording.episode.rewards) + 1
    return f"{hint} The last {num_states} states of this row are in {path}: gpuvec watch {run.path}"
