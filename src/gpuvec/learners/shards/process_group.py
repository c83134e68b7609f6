"""The processes of a training: what they exchange through torch.distributed, by NCCL on GPUs and by gloo on CPUs, and checks
that the environments can be divided into shards, and those into processes.

Letters: S shards, N numbers of a shard.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpuvec.errors import LostProcessError, ProcessesError
from gpuvec.learners.algorithms import args_to_dict
from gpuvec.learners.config.training_config import DDPGArgs, TrainingArgs
from gpuvec.learners.shards.torchrun import Sharding, Sync, number_of_shards


class Groups:
    """The process groups of torch.distributed.

    Args:
        host: the group for data of the host; None for one process.
    """

    def __init__(self, host: Any = None) -> None:
        self.host = host
        self.device: Any = None
        """The group for tensors on the devices."""
        self.is_aborted: list[Tensor] = []
        """Tensors of the host, (1,) int32, that kernels read while they wait for another process; 1 ends the wait."""

    def abort(self) -> None:
        """Ends the exchanges on GPUs that wait for a process that ended; closing the groups would wait for them."""
        for flag in self.is_aborted:
            flag.fill_(1)
        if self.device is not None and dist.get_backend(self.device) == "nccl":
            self.device.abort()

    def close(self) -> None:
        """Ends the threads of the groups; a thread that frees a tensor while Python ends would end the process by an error."""
        self.host = self.device = None


@dataclass(frozen=True)
class Processes:
    """The processes of a training, by default this one alone."""

    rank: int = 0
    """The number of this process."""
    size: int = 1
    """The number of processes."""
    deterministic: bool = True
    """Whether sums are of the shards in a fixed order; otherwise the order is that of the library."""
    groups: Groups = field(default_factory=Groups)
    """The process groups, without which this process is alone."""

    def exchange(self, parts: Sequence[Tensor], only_sum: bool) -> Tensor:
        """Exchanges numbers between all shards.

        Args:
            parts: (N,) of each shard of this process.
            only_sum: whether the sum over all shards is returned, (N,), instead of all numbers, (S, N).

        Raises:
            LostProcessError: another process ended.
        """
        values = torch.stack(list(parts))
        if self.size > 1 and only_sum and not self.deterministic:
            total = values.sum(0)
            with _lost_processes_reported():
                dist.all_reduce(total, group=self.groups.device)
            return total
        if self.size > 1:
            values = self._gather(values, self.groups.device)
        return values.sum(0) if only_sum else values

    def _gather(self, values: Tensor, group: Any) -> Tensor:
        """Returns the `values` of all processes, equally many of each, one after the other along the first dimension."""
        # The name of PyTorch since 2.13, and the one before.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gathered = values.new_empty((self.size * len(values), *values.shape[1:]))
        with _lost_processes_reported():
            gather(gathered, values.contiguous(), group=group)
        return gathered

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copies the tensors of the first process, of any shapes (...), to those of the others.

        Raises:
            LostProcessError: another process ended.
        """
        if self.size == 1:
            return
        with _lost_processes_reported(), torch.no_grad():
            for tensor in tensors:
                values = tensor.detach().contiguous()
                dist.broadcast(values, 0, group=self.groups.device)
                tensor.copy_(values)

    def gather_states(self, state: Any) -> list[Any]:
        """Returns the `state` of all processes: nested dicts and lists of tensors, numbers and strings, on the host.

        Raises:
            LostProcessError: another process ended.
        """
        if self.size == 1:
            return [state]
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
        sizes = self._gather(torch.tensor([len(content)]), self.groups.host).tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        rows = self._gather(padded.view(1, -1), self.groups.host)
        files = (io.BytesIO(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True))
        return [torch.load(file, map_location="cpu", weights_only=True) for file in files]

    def require_equal(self, values: Mapping[str, str]) -> None:
        """Checks that the processes have the same values.

        Args:
            values: {name: value as text}.

        Raises:
            ProcessesError: they differ; the message names the first difference.
            LostProcessError: another process ended.
        """
        first, *others = self.gather_states(dict(values))
        for rank, other in enumerate(others, 1):
            for name in sorted({*first, *other}):
                if first.get(name) != other.get(name):
                    raise ProcessesError(
                        f"all processes of a training must have the same {name}: it is {first.get(name)} in process 0 and "
                        f"{other.get(name)} in process {rank}."
                    )

    def numbers_of_first(self, compute: Callable[[], Sequence[float]], count: int) -> list[float]:
        """Returns the numbers of the first process, which alone calls the function `compute`.

        Args:
            compute: returns `count` numbers.
            count: how many they are.

        Raises:
            LostProcessError: another process ended.
        """
        if self.size == 1:
            return list(compute())
        values = torch.tensor(compute() if self.rank == 0 else [0.0] * count, dtype=torch.float64)
        with _lost_processes_reported():
            dist.broadcast(values, 0, group=self.groups.host)
        numbers: list[float] = values.tolist()
        return numbers

    def largest(self, number: int) -> int:
        """Returns the largest `number` of all processes, which all of them must call.

        Raises:
            LostProcessError: another process ended.
        """
        return number if self.size == 1 else int(self._gather(torch.tensor([number]), self.groups.host).max())

    def wait_for_all(self) -> None:
        """Waits until all processes call this, too.

        Raises:
            LostProcessError: another process ended.
        """
        self.largest(0)


@contextmanager
def _lost_processes_reported() -> Iterator[None]:
    """Raises LostProcessError for what torch.distributed raises when another process ended or does not answer."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LostProcessError(f"another process of the training ended, or does not answer: {reason[:200]}") from error


def divide(configs: Mapping[str, Any], sharding: Sharding, iteration: int, joined: Processes) -> tuple[Processes, int]:
    """Returns the processes of a training, and its number of shards, after a check that the processes agree.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        sharding: as the user wants it.
        iteration: that of the checkpoint from which the training continues; 0 for none.
        joined: the processes that torchrun started.

    Raises:
        ProcessesError: the processes have other settings.
        ValueError: a number that is not divided; the message says what to change.
        LostProcessError: another process ended.
    """
    processes = replace(joined, deterministic=sharding.deterministic_shards)
    count = number_of_shards(sharding, processes.size)
    processes.require_equal(
        {
            "sync": sharding.sync,
            "shards": str(count),
            "deterministic_shards": str(sharding.deterministic_shards),
            "iteration of the checkpoint": str(iteration),
            **comparable_settings(configs),
        }
    )
    require_divisible(configs, count, processes, sharding.sync)
    return processes, count


def require_divisible(configs: Mapping[str, Any], shards: int, processes: Processes, sync: Sync = "gradient") -> None:
    """Checks that shards divide the settings of a training, and that processes divide the shards.

    Args:
        configs: {role: settings, resolved, or an opponent}.
        shards: the number of shards.
        processes: the processes of the training.
        sync: what the processes exchange.

    Raises:
        ValueError: a number that is not divided; the message says what to change.
    """
    if shards < 1:
        raise ValueError(f"shards must be at least 1, got {shards}.")
    if sync == "iteration" and shards != processes.size:
        raise ValueError(
            f"sync='iteration' has one shard for each of {processes.size} processes, got shards={shards}: leave out shards, "
            "and continue a run with as many processes as it was started with."
        )
    if not processes.deterministic and shards != processes.size:
        raise ValueError(
            f"deterministic_shards=False has one shard for each of {processes.size} processes, got shards={shards}: leave out "
            "shards."
        )
    if shards % processes.size:
        raise ValueError(
            f"the number of processes must divide that of shards, got {processes.size} processes and {shards} shards: start "
            f"another number of processes, or give --shards {processes.size}."
        )
    for args in configs.values():
        if not isinstance(args, TrainingArgs) or shards == 1:
            continue
        numbers = {"num_envs": args.num_envs or 0}
        if isinstance(args, DDPGArgs) and sync == "gradient":
            numbers["batch_size"] = args.batch_size
        for name, number in numbers.items():
            if number % shards:
                raise ValueError(f"{name} must be a multiple of the number of shards, got {number} and {shards}.")
        num_minibatches = getattr(args, "num_minibatches", 1)  # of PPO, and of algorithms of users
        if args.steps_per_iteration // shards % num_minibatches:
            raise ValueError(
                f"num_envs * num_steps / shards must be a multiple of num_minibatches, got {args.num_envs} * {args.num_steps} "
                f"/ {shards} and {num_minibatches}."
            )


def comparable_settings(configs: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings on which the processes of a training must agree, as text.

    Args:
        configs: {role: settings, resolved, or an opponent}.
    """
    values = {"policies": ", ".join(configs)}
    for role, config in configs.items():
        settings = args_to_dict(config) if isinstance(config, TrainingArgs) else {"policy": type(config).__name__}
        prefix = f"{role}/" if len(configs) > 1 else ""
        values |= {f"{prefix}{name}": json.dumps(value) for name, value in settings.items() if name != "device"}
    return values
