"""What PyTorch Lightning costs: PPO in CartPole by `Trainer.fit` against the same iterations by `train`.

Both have 65,536 environments, T = 32 and fused kernels, and read metrics while the next iteration runs. The Trainer is measured
without output (`quiet`), and with a CSV logger, a progress bar and a checkpoint after each epoch (`default`). Windows with the
same number of iterations by Lightning and by `train` take turns in one process, and `cost` is the share of time that Lightning
adds. Capture and compilation do not count.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.tools.measure import Figures, make_parser, missing_modules, summarize, synchronize

SOURCES = ("CartPole-v1", "vector", "learners")
WARMUP = 20  # iterations of each


def plain_window(args: Any, device: str) -> Any:
    """Returns a function that runs iterations as `train` does, and returns their seconds.

    Args:
        args: the settings.
        device: "cpu" or "cuda:<index>".
    """
    from gpuvec.learners.cuda_graphs.settings import torch_settings
    from gpuvec.learners.training import Iterations, make_learner, make_training_env

    args = args.resolved(device)
    with torch_settings(device, args.threads):
        learner = make_learner(args, make_training_env(args, args.num_envs))
        if device != "cpu":
            learner.capture()
    iterations = Iterations(args, learner, None, None)

    def run(count: int) -> float:
        synchronize()
        start = time.perf_counter()
        with torch_settings(device, args.threads):
            for _ in range(count):
                learner.iterate()
                iterations.read()
        synchronize()
        return time.perf_counter() - start

    run(WARMUP)
    return run


def measure(figures: Figures, way: str, arguments: Any) -> None:
    """Adds the times of an iteration, and the cost.

    Args:
        figures: where the rows are added.
        way: "quiet" or "default".
        arguments: of the command line.
    """
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger

    from gpuvec.learners.lightning import LearnerModule
    from gpuvec.learners.ppo import PPOArgs

    window, repeats = arguments.iterations, arguments.repeats
    total = WARMUP + window * repeats
    args = PPOArgs(num_envs=arguments.num_envs, num_steps=32, num_iterations=10 * total)
    run_plain = plain_window(args, arguments.device)

    class Windows(Callback):
        """Measures the iterations of Lightning, and those of `train` between two windows."""

        def __init__(self) -> None:
            self.seconds: dict[str, list[float]] = {"lightning": [], "train": []}
            self.start = 0.0

        def on_train_batch_end(self, trainer: Any, *unused: Any) -> None:
            done = trainer.global_step - WARMUP
            if done < 0 or done % window:
                return
            synchronize()
            if done:
                self.seconds["lightning"].append(time.perf_counter() - self.start)
                self.seconds["train"].append(run_plain(window))
            self.start = time.perf_counter()

    windows = Windows()
    with tempfile.TemporaryDirectory() as folder:
        quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        default: dict[str, Any] = {"logger": CSVLogger(folder)}
        callbacks = [windows, *([ModelCheckpoint(dirpath=folder)] if way == "default" else [])]
        settings = {**(quiet if way == "quiet" else default), "enable_model_summary": False, "callbacks": callbacks}
        accelerator = "cpu" if arguments.device == "cpu" else "gpu"
        trainer = Trainer(max_epochs=-1, max_steps=total, accelerator=accelerator, devices=1, **settings)
        trainer.fit(LearnerModule(args, iterations_per_epoch=window))
    for name, seconds in windows.seconds.items():
        timing = summarize([each / window * 1e6 for each in seconds])
        figures.add(f"{args.num_envs}.{way}.{name}", timing.median, "us", SOURCES, spread=timing.spread, iterations=window)
    shares = [a / b - 1.0 for a, b in zip(windows.seconds["lightning"], windows.seconds["train"], strict=True)]
    details = {"least": 100.0 * min(shares), "most": 100.0 * max(shares)}
    figures.add(f"{args.num_envs}.{way}.cost", 100.0 * statistics.median(shares), "%", SOURCES, **details)


def main() -> None:
    """Measures both ways."""
    parser = make_parser(__doc__)
    parser.add_argument("--ways", nargs="*", choices=("quiet", "default"), default=("quiet", "default"))
    parser.add_argument("--num-envs", type=int, default=65_536, metavar="E")
    parser.add_argument("--iterations", type=int, default=250, metavar="N", help="of a window, and of an epoch of Lightning")
    parser.add_argument("--repeats", type=int, default=5, help="windows of each")
    parser.add_argument("--device", default="cuda:0")
    arguments = parser.parse_args()
    figures = Figures("lightning_training", arguments.json)
    if missing := missing_modules("lightning"):
        figures.add_failure("lightning", missing)
        return
    for way in arguments.ways:
        with figures.continue_after_failure(way):
            measure(figures, way, arguments)


if __name__ == "__main__":
    main()
