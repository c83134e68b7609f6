"""One process of a world that `multi_gpu.py` measures.

    multi_gpu_worker.py SETTINGS ANSWER

SETTINGS is a JSON file with the fields of `WorldSettings`. The first process writes ANSWER, a JSON file with what
`measure_world` returns. A world is a number of processes with one device each.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import gpuvec  # noqa: F401  # registers the environments
from benchmarks.tools.child_processes import end_with_parent
from gpuvec.learners.autoscale import ENDLESS
from gpuvec.learners.cuda_graphs.graph import capture
from gpuvec.learners.cuda_graphs.settings import torch_settings
from gpuvec.learners.iterations import Iterations
from gpuvec.learners.ppo import PPOArgs
from gpuvec.learners.shards.join import join_processes
from gpuvec.learners.shards.process_group import Processes
from gpuvec.learners.shards.torchrun import process_device, read_launch
from gpuvec.learners.training import open_learner

WARM_UPS = 3  # iterations
MIN_ITERATIONS = 2  # of a round


@dataclass(frozen=True)
class WorldSettings:
    """What is measured."""

    device: str
    """cpu or cuda."""
    env: str
    """Id of the environment."""
    num_envs: int
    """Environments of each process in the measurements of speed, and of all processes together in the comparison of bits."""
    num_steps: int
    """Steps of a rollout."""
    shards: int
    """The number of shards in the comparison of bits."""
    seconds: float
    """The time that is measured for each variant."""
    rounds: int
    """The number of parts of that time; in each round all variants are measured in turn."""
    iterations: int
    """The number of iterations after which bits are compared."""
    run_steps: int
    """If above 0, environment steps of one long training, whose time is measured."""


class Variant(NamedTuple):
    """A way to train."""

    name: str
    is_fused: bool
    num_shards: int
    is_distributed: bool  # whether tensors go through the process group, in a world of one process, too
    is_deterministic: bool = True  # whether the shards are added in a fixed order
    uses_inboxes: bool = True  # whether fused kernels write gradients into the memory of other GPUs, if they can


class Recorder:
    """Records exchanges while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.requests: list[tuple[list[torch.Tensor], bool]] = []
        """Tensors of the shapes of each exchange, and whether only their sum was wanted."""


@dataclass(frozen=True)
class MeasuredProcesses(Processes):
    """Processes that record what they exchange, and that use the process group even if there is only one."""

    recorder: Recorder = field(default_factory=Recorder)

    def exchange(self, parts: Any, only_sum: bool) -> torch.Tensor:
        """Exchanges numbers between all shards, as `Processes.exchange`."""
        if self.recorder.is_on:
            self.recorder.requests.append(([torch.zeros_like(part) for part in parts], only_sum))
        if self.size > 1 or self.groups.device is None:
            return super().exchange(parts, only_sum)
        values = self._gather(torch.stack(list(parts)), self.groups.device)
        return values.sum(0) if only_sum else values


def list_variants(world: int, shards: int) -> list[Variant]:
    """Returns what is measured in a world.

    Args:
        world: the number of processes.
        shards: the number of shards with which all worlds have the same bits.
    """
    if world > 1:
        return [
            Variant("fused", True, world, True),
            Variant("fused.nccl", True, world, True, uses_inboxes=False),
            Variant("torch", False, world, True),
            Variant("torch.plain", False, world, True, is_deterministic=False),
        ]
    return [
        variant
        for name, is_fused in (("fused", True), ("torch", False))
        for variant in (
            Variant(name, is_fused, 1, False),
            Variant(f"{name}.shards2", is_fused, 2, False),
            Variant(f"{name}.shards2.group", is_fused, 2, True),
            Variant(f"{name}.shards{shards}", is_fused, shards, False),
        )
    ]


@contextmanager
def inboxes_allowed(is_allowed: bool) -> Iterator[None]:
    """Makes fused kernels exchange gradients by the process group in the block, unless `is_allowed`."""
    if is_allowed:
        yield
        return
    # Imported here because it imports the CUDA compiler, which a CPU does not need.
    from gpuvec.learners.fused_ppo import fused_policy

    original = fused_policy.make_inboxes
    fused_policy.make_inboxes = lambda *_: "the benchmark measures the process group"
    try:
        yield
    finally:
        fused_policy.make_inboxes = original


class Run:
    """A learner that is measured.

    Args:
        settings: what is measured.
        variant: how it trains.
        joined: the processes of the world.
        stack: closes the learner.

    Raises:
        ValueError: there are no fused kernels for this variant.
    """

    def __init__(self, settings: WorldSettings, variant: Variant, joined: Processes, stack: ExitStack) -> None:
        groups = joined.groups if variant.is_distributed else Processes().groups
        self.processes = MeasuredProcesses(joined.rank, joined.size, variant.is_deterministic, groups)
        self.variant, self.device = variant, process_device(settings.device)
        self.args = PPOArgs(
            env=settings.env, device=self.device, num_envs=settings.num_envs * joined.size, num_steps=settings.num_steps,
            total_steps=ENDLESS, fused=variant.is_fused,
        )  # fmt: skip
        with inboxes_allowed(variant.uses_inboxes or not variant.is_fused or self.device == "cpu"):
            self.learner = stack.enter_context(open_learner({"all": self.args}, None, variant.num_shards, self.processes))
        recorder = self.processes.recorder
        recorder.is_on = True
        self.learner.iterate()
        recorder.is_on, self.requests = False, recorder.requests
        if self.device != "cpu":
            self.learner.capture()
        self.seconds: list[float] = []  # of an iteration, in each round
        self.iterations = 0  # of a round

    def choose_iterations(self, seconds: float) -> None:
        """Measures how many iterations take so many seconds."""
        self.elapsed(WARM_UPS)
        count = int(seconds / (self.elapsed(WARM_UPS) / WARM_UPS))
        self.iterations = self.processes.largest(max(MIN_ITERATIONS, count))

    def elapsed(self, iterations: int) -> float:
        """Returns the seconds of some iterations, which all processes begin together."""
        self.processes.wait_for_all()
        begin = time.perf_counter()
        for _ in range(iterations):
            self.learner.iterate()
        self.learner.read()  # waits for the device, and raises an error if a number is not finite
        return time.perf_counter() - begin

    def measure_round(self) -> None:
        """Measures one round."""
        self.seconds.append(self.elapsed(self.iterations) / self.iterations)

    def exchange_seconds(self) -> float:
        """Returns the seconds that the exchanges of an iteration take by themselves."""
        if not self.requests:
            return 0.0

        def exchange_all() -> None:
            for parts, only_sum in self.requests:
                self.processes.exchange(parts, only_sum)

        if self.device == "cpu":
            return self._seconds_of(exchange_all)
        graph = capture(exchange_all, self.device, [], lambda: 0)
        try:
            return self._seconds_of(graph)
        finally:
            graph.release()

    def _seconds_of(self, call: Callable[[], None]) -> float:
        """Returns the seconds of a call."""
        call()
        self._synchronize()
        begin = time.perf_counter()
        for _ in range(self.iterations):
            call()
        self._synchronize()
        return (time.perf_counter() - begin) / self.iterations

    def _synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize(self.device)
        self.processes.wait_for_all()

    def train(self, steps: int) -> dict[str, float]:
        """Trains for so many steps, as `train` does; returns the seconds and the number of steps."""
        done = self.learner.iteration
        args = replace(self.args, total_steps=done * self.args.steps_per_iteration + steps)
        self.processes.wait_for_all()
        begin = time.perf_counter()
        Iterations(args, self.learner, None, None, self.processes).run()
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "steps": (self.learner.iteration - done) * args.steps_per_iteration}

    def describe(self) -> dict[str, Any]:
        """Returns the figures of the variant."""
        num_bytes = sum(sum(part.nbytes for part in parts) for parts, _ in self.requests)
        return {
            "seconds": self.seconds, "steps": self.args.steps_per_iteration, "exchange_seconds": self.exchange_seconds(),
            "exchanges": len(self.requests), "bytes": num_bytes,
        }  # fmt: skip


def bits(settings: WorldSettings, is_fused: bool, processes: Processes) -> str:
    """Returns a hash of the weights after some iterations, of the same training in all worlds.

    Raises:
        RuntimeError: the processes have other weights.
        ValueError: there are no fused kernels for so many shards.
    """
    device = process_device(settings.device)
    args = PPOArgs(
        env=settings.env, device=device, num_envs=settings.num_envs, num_steps=settings.num_steps, total_steps=ENDLESS,
        fused=is_fused,
    )  # fmt: skip
    with open_learner({"all": args}, None, settings.shards, processes) as learner:
        if device != "cpu":
            learner.capture()
        for _ in range(settings.iterations):
            learner.iterate()
        learner.read()
        weights = b"".join(
            x.detach().cpu().contiguous().numpy().tobytes() for x in learner.policy.network.state_dict().values()
        )
    digests = processes.gather_states(hashlib.sha256(weights).hexdigest()[:16])
    if len(set(digests)) > 1:
        raise RuntimeError(f"the processes have other weights: {digests}")
    return str(digests[0])


def measure_bits(settings: WorldSettings, joined: Processes) -> dict[str, dict[str, str]]:
    """Returns {"torch" or "fused": {the processes: hash of the weights}}; there is no entry without kernels for it."""
    through_group = MeasuredProcesses(joined.rank, joined.size, groups=joined.groups)
    groups = {f"{joined.size}": through_group} if joined.size > 1 else {"alone": Processes(), "1": through_group}
    result: dict[str, dict[str, str]] = {"torch": {}, "fused": {}}
    for name, processes in groups.items():
        result["torch"][name] = bits(settings, False, processes)
        try:
            result["fused"][name] = bits(settings, True, processes)
        except ValueError:
            continue
    return result


def measure_world(settings: WorldSettings) -> dict[str, Any]:
    """Returns the figures of the world of this process.

    They are "variants": {name: `Run.describe`}, "missing": {name: why it cannot be used}, "bits": that of `measure_bits`, and
    with `run_steps` "run": the variant, seconds and steps of the long training.
    """
    with join_processes(settings.device) as joined, ExitStack() as stack:
        device = process_device(settings.device)
        stack.enter_context(torch_settings(device, threads=1))
        runs: list[Run] = []
        missing: dict[str, str] = {}
        for variant in list_variants(joined.size, settings.shards):
            try:
                runs.append(Run(settings, variant, joined, stack))
            except ValueError as error:
                missing[variant.name] = str(error)
        for run in runs:
            run.choose_iterations(settings.seconds / settings.rounds)
        for _ in range(settings.rounds):
            for run in runs:
                run.measure_round()
        result = {"variants": {run.variant.name: run.describe() for run in runs}, "missing": missing}
        result["bits"] = measure_bits(settings, joined)
        if settings.run_steps:
            rates = {run.variant.name: run.args.steps_per_iteration / min(run.seconds) for run in runs}
            fastest = joined.gather_states(max(rates, key=lambda name: rates[name]))[0]
            (run,) = (run for run in runs if run.variant.name == fastest)
            result["run"] = {"variant": fastest, **run.train(settings.run_steps)}
        return result


def main() -> None:
    """Measures, and writes the answer in the first process."""
    end_with_parent()
    settings = WorldSettings(**json.loads(Path(sys.argv[1]).read_text()))
    answer = measure_world(settings)
    launch = read_launch()
    if launch is not None and launch.rank == 0:
        Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
