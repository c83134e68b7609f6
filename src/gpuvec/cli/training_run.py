"""Runs a training for `gpuvec train` and `gpuvec resume`, with its display, its run folder and the evaluation at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuvec.cli.eval_command import parameters_line, result_lines, solved_text
from gpuvec.cli.failure_replay import save_failure
from gpuvec.cli.progress import Progress, waiting
from gpuvec.cli.terminal import print_lines
from gpuvec.errors import NonFiniteError
from gpuvec.learners.algorithms import algorithm_name
from gpuvec.learners.config.training_config import TrainingArgs
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.metric_names import ENV_METRICS
from gpuvec.learners.shards.torchrun import Sharding
from gpuvec.registration import find_env_spec, load_env
from gpuvec.replay.live.files import file_name

if TYPE_CHECKING:
    from gpuvec.learners.learner import Learner
    from gpuvec.learners.runs.run_writer import RunRecorder, RunWriter
    from gpuvec.learners.training import Result
    from gpuvec.replay.live.process import LiveReplays, LiveSettings


class CommandRecorder:
    """Shows the metrics of a training, and records live replays, besides what is written to the run folder.

    Args:
        recorder: writes the run folder.
        live: how often live replays are saved; None for never.
    """

    def __init__(self, recorder: RunRecorder, live: LiveSettings | None = None) -> None:
        self._recorder, self._live_settings = recorder, live
        self.live_replays: LiveReplays | None = None

    def record(self, progress: Progress, learner: Learner, metrics: dict[str, float]) -> None:
        """Writes the metrics of an iteration, and a checkpoint if one is due.

        Args:
            progress: the display, which is updated.
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

                self.live_replays = LiveReplays(run.path, learner, self._live_settings, print_problem)
            run.log(metrics)
        if self.live_replays is not None:
            self.live_replays.update()
            self._log_videos(self.live_replays)
        progress.update(metrics, learner.stage_timer.seconds(), learner.single_graph)
        self._recorder.save_if_due(learner, metrics)

    def save_last(self, checkpoint: Mapping[str, Any]) -> RunWriter:
        """Writes the final checkpoint, and begins to record the final policies if there are live replays.

        Args:
            checkpoint: that of the result.

        Returns:
            The run folder.
        """
        run = self._recorder.save_last(checkpoint)
        if self.live_replays is not None:
            networks = {role: checkpoint["policies"][role]["network"] for role in checkpoint["args"]}
            self.live_replays.save_last(networks, checkpoint["iteration"])
        return run

    def print_stop(self, iterations: int) -> None:
        """Prints after which iteration a signal stopped the training, if this process writes the run folder.

        Args:
            iterations: the number of iterations of the whole training.
        """
        checkpoint = self._recorder.last_checkpoint
        if checkpoint is not None:
            _, _, iteration = checkpoint.stem.partition("-")
            remedy = f"to continue: gpuvec resume {checkpoint.parent}"
            print_lines(f"stopped    after {iteration} of {iterations} iterations; {remedy}")

    def explain(self, fault: NonFiniteError, policies: Mapping[str, TrainingArgs], checkpoint: Mapping[str, Any] | None) -> str:
        """Saves a replay of the row that broke, and returns what a user can look at after a fault.

        Args:
            fault: what ended the training.
            policies: {role: settings}.
            checkpoint: the checkpoint from which the run continued; None for a new run.
        """
        previous = self._recorder.last_checkpoint or (checkpoint and "that from which the run continued")
        hint = f"The previous checkpoint is {previous}." if previous else "No checkpoint was written before."
        if fault.location is None or (run := self._recorder.open()) is None:
            return hint
        if self._recorder.num_shards > 1:
            return f"{hint} A training of several shards has no replay of it."
        return f"{hint} {save_failure(run, fault.location, policies, checkpoint)}"

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


def print_problem(text: str) -> None:
    """Prints a problem that does not end the command.

    Args:
        text: what it is.
    """
    print_lines(f"gpuvec: {text}", is_error=True)


def run_training(
    policies: Mapping[str, TrainingArgs],
    open_run: Callable[[], RunWriter],
    checkpoint: Mapping[str, Any] | None,
    checkpoint_every: int,
    episodes: int,
    live: LiveSettings | None = None,
    sharding: Sharding | None = None,
    token: str | None = None,
) -> int:
    """Trains, writes the run folder, and evaluates the result.

    Args:
        policies: {role: settings}.
        open_run: creates or opens the run folder.
        checkpoint: the checkpoint from which the run continues; None for a new run.
        checkpoint_every: iterations between two checkpoints.
        episodes: the number of episodes in the evaluation.
        live: how often live replays are saved; None for never.
        sharding: how the environments are divided; None for the default.
        token: as in `RunRecorder`.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended the training.
    """
    args, sharding = next(iter(policies.values())), sharding or Sharding()
    if live is not None and live.videos:
        require_pictures(args.env)
    with waiting("loading PyTorch"):
        from gpuvec.learners.runs.run_writer import RunRecorder
        from gpuvec.learners.shards.join import join_processes

    with ExitStack() as stack:
        processes = stack.enter_context(join_processes(args.device))
        processes.require_equal({"checkpoint_every": str(checkpoint_every)})  # all gather a checkpoint at the same time
        recorder = stack.enter_context(closing(RunRecorder(open_run, checkpoint_every, sharding, processes, token)))
        command = CommandRecorder(recorder, live)
        stack.callback(command.end_live_replays)
        try:
            with deferred_signals() as recorder.received_signal:
                result = _train(policies, command, recorder.is_checkpoint_due, checkpoint, sharding, processes.size)
            if processes.rank:
                return 0
            run = command.save_last(result.checkpoint)
        except NonFiniteError as error:
            # With the traceback of the error, which has the learner, its memory is free for another one.
            fault = NonFiniteError(str(error), error.location)
        except KeyboardInterrupt:
            if not recorder.stop_signal:
                raise
            command.print_stop(args.iterations)
            # torchrun ends the other processes when one has ended, which must not be before the first one has saved.
            processes.wait_for_all()
            return 128 + recorder.stop_signal
        else:
            evaluate_result(result, args, run, episodes)
            command.end_live_replays(wait=True)
            return 0
        raise NonFiniteError(f"{fault} {command.explain(fault, policies, checkpoint)}", fault.location)


def require_pictures(env_id: str) -> None:
    """Checks that an environment draws pictures, of which videos are made.

    Args:
        env_id: the id of the environment.

    Raises:
        ValueError: it does not.
    """
    if load_env(find_env_spec(env_id).kwargs["env"]).draw is None:
        raise ValueError(
            f"--capture-video has nothing to show: {env_id} draws no pictures. Give the environment a function `draw`, or "
            "leave the option out."
        )


def _train(
    policies: Mapping[str, TrainingArgs],
    command: CommandRecorder,
    is_checkpoint_due: Callable[[int], bool],
    checkpoint: Mapping[str, Any] | None,
    sharding: Sharding,
    num_processes: int,
) -> Result:
    """Trains, and shows the progress."""
    from gpuvec.learners.training import train as train_policies

    args, title = next(iter(policies.values())), _title(policies, num_processes)
    with Progress(title, args.iterations, may_end_early=args.target_return is not None) as progress:
        return train_policies(
            policies,
            partial(command.record, progress),
            checkpoint,
            on_phase=progress.wait_for,
            exact_at=is_checkpoint_due,
            shards=sharding.shards,
            deterministic_shards=sharding.deterministic_shards,
            sync=sharding.sync,
        )


def _title(policies: Mapping[str, TrainingArgs], num_processes: int) -> str:
    """The line above the progress of a training."""
    args = next(iter(policies.values()))
    algorithms = (algorithm_name(each).rpartition(":")[2] for each in policies.values())
    names = " and ".join(dict.fromkeys(name.upper() for name in algorithms))
    device = args.device if num_processes == 1 else f"{args.device.partition(':')[0]} in {num_processes} processes"
    return f"{names} on {args.env}, {args.num_envs} environments on {device}, seed {args.seed}"


def evaluate_result(result: Result, args: TrainingArgs, run: RunWriter, episodes: int) -> None:
    """Evaluates the trained policies, prints their returns, and writes them to the run folder, which completes the run.

    Args:
        result: the result of the training.
        args: the settings of the first policy, resolved.
        run: the run folder.
        episodes: the number of episodes.
    """
    from gpuvec.learners.evaluation.evaluate import run_episodes
    from gpuvec.learners.evaluation.players import policies_by_role
    from gpuvec.learners.seeds import EVALUATION, stream_seed

    seed = stream_seed(args.seed, EVALUATION)
    player = policies_by_role(result.networks, seed=seed)
    params = args.evaluate_params
    results = run_episodes(args.env, player, episodes=episodes, seed=seed, device=args.device, params=params)
    returns, last_metrics = results.returns, result.history[-1]
    means = {f"{ENV_METRICS}/{name}": float(values.double().mean()) for name, values in results.metrics.items()}
    ending = {"iteration": last_metrics["iteration"], "ended_by": result.ended_by}
    run.finish({**ending, "episodes": episodes, "params": params, "mean_return": float(returns.mean()), **means})
    solved_at = solved_text(args.env, params)
    print_lines(f"trained    {last_metrics['steps']:,.0f} steps in {last_metrics['seconds']:.1f} s")
    print_lines(f"evaluated  mean return {returns.mean():.1f} over {episodes} episodes (lowest {returns.min():.1f}{solved_at})")
    print_lines(parameters_line(params, args.params), *result_lines(results))
    print_lines(f"run        {run.path}")
