"""A population whose agents are trained by several processes, each on one core of a CPU.

Each process has whole groups of agents, so that an agent has the bits that it has in one process. It reads the settings from
its standard input, and then calls of the methods of `BatchedPopulation`, which it answers on its standard output. Messages are
text and arrays, without pickle.
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpuvec.errors import StateError
from gpuvec.learners.algorithms import args_from_json, args_to_dict
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.population.batched.batched_population import GROUP_SIZES, BatchedPopulation
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.state.agent_state import changed_agents, select_agents
from gpuvec.learners.population.state.environment import make_population_env
from gpuvec.learners.population.state.state_arrays import to_arrays, to_tensors
from gpuvec.learners.runs.archives import flatten, nest, to_npz
from gpuvec.python_command import python_command

COMMAND = "from gpuvec.learners.population.cpu_population import main; main()"
COLUMNS = ("seeds", "settings", "params")  # of `PopulationArgs`, which have a value for each agent
COPIED = ("parameters", "exp_avg", "exp_avg_sq", "adam_step", "stopped_at", "fault")
SECONDS_TO_END = 5.0
LENGTH_BYTES = 8


class CPUPopulation:
    """A population that learns in several processes.

    Args:
        args: the settings, resolved for a CPU; `threads` is the largest number of processes.

    Raises:
        RuntimeError: a process cannot train, for example because the environment is registered in this process alone.
    """

    def __init__(self, args: PopulationArgs) -> None:
        self.args, self.iteration = args, 0
        size, num_agents = GROUP_SIZES["cpu"], args.num_agents
        num_groups = -(-num_agents // size)
        count = min(args.base.threads, num_groups)
        bounds = [min(k * num_groups // count * size, num_agents) for k in range(count + 1)]
        self._parts = [range(begin, end) for begin, end in pairwise(bounds)]
        self.name = f"batched operations in {count} processes"
        """What trains, for messages."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self._processes = [
            subprocess.Popen(
                python_command(COMMAND), env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            )
            for _ in self._parts
        ]  # fmt: skip
        try:
            parts = [args.select(part) for part in self._parts]
            columns = [{name: getattr(part, name) for name in COLUMNS} for part in parts]
            self._call([Message({"base": args_to_dict(args.base), **values}, {}) for values in columns])
        except BaseException:
            self.close()
            raise

    def _call(self, messages: Sequence[Message]) -> list[Message]:
        """Sends a message to each process, and returns their answers."""
        answers = []
        with suppress(BrokenPipeError):  # of a process that ended, whose answer is missing
            for process, message in zip(self._processes, messages, strict=True):
                assert process.stdin is not None, "it is a pipe"
                write_message(process.stdin, message)
        for process in self._processes:
            assert process.stdout is not None, "it is a pipe"
            answer = read_message(process.stdout)
            if answer is None or "error" in answer.values:
                reason = self._reason(answer)
                error = StateError if reason.startswith(StateError.__name__) else RuntimeError
                raise error(f"a process that trains agents ended: {reason}")
            answers.append(answer)
        return answers

    def _reason(self, answer: Message | None) -> str:
        """Returns why a process ended."""
        if answer is not None:
            return str(answer.values["error"])
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-2000:] or "it printed nothing"

    def _call_each(self, method: str, **values: Any) -> list[Message]:
        """Calls a method in each process with the same arguments."""
        return self._call([Message({"method": method, **values}, {})] * len(self._parts))

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        for process in self._processes:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()  # type: ignore[union-attr]  # it is a pipe
        self._errors.close()

    def capture(self) -> None:
        """Does nothing: a CPU has no graphs."""

    @property
    def stopped_at(self) -> Tensor:
        """(P,) int64: the iteration in which an agent was stopped, because a number was not finite; -1 for one that runs."""
        return torch.from_numpy(np.concatenate([each.arrays["stopped_at"] for each in self._call_each("stopped_at")]))

    def advance(self, iterations: int) -> Tensor:
        """Runs iterations and returns their `METRICS`, (iterations, metrics, P) float32.

        Args:
            iterations: the number of iterations.
        """
        results = [each.arrays["results"] for each in self._call_each("advance", iterations=iterations)]
        self.iteration += iterations
        return torch.from_numpy(np.concatenate(results, 2))

    def evaluate(self) -> Tensor:
        """Returns the mean return of each agent in an evaluation, see `PopulationEvaluator`, (P,) float32 on the CPU."""
        return torch.from_numpy(np.concatenate([each.arrays["returns"] for each in self._call_each("evaluate")]))

    def state_dict(self) -> dict[str, Any]:
        """Returns copies of all that the next iteration depends on; see `BatchedPopulation.tensors`."""
        states = [state_from_message(each) for each in self._call_each("state_dict")]
        with closing(make_population_env(self.args.select([0]))) as env:
            layout = env.unwrapped.simulation.layout.persistent
        buffers = {
            name: torch.cat([state["env"]["buffers"][name] for state in states]) if layout[name].rows == "env" else x
            for name, x in states[0]["env"]["buffers"].items()
        }
        seeds = [seed for state in states for seed in state["env"]["seed"]]
        tensors = _concatenate([state["tensors"] for state in states])
        return {"tensors": tensors, "env": {"buffers": buffers, "seed": seeds}, "iteration": self.iteration}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from the moment at which `state_dict` was called.

        Args:
            saved: its result, of a population with the same seeds, networks and environment.

        Raises:
            StateError: a state of another population.
        """
        messages = []
        for part in self._parts:
            message = state_to_message(select_agents(self.args, saved, part)[1])
            messages.append(Message({**message.values, "method": "load_state_dict"}, message.arrays))
        self._call(messages)
        self.iteration = saved["iteration"]

    def set_settings(self, name: str, values: ArrayLike) -> None:
        """Changes a setting of all agents for the iterations that follow.

        Args:
            name: one of `AGENT_SETTINGS`.
            values: P values.
        """
        method = {"method": "set_settings", "name": name}
        column = np.asarray(values).tolist()
        self._call([Message({**method, "values": column[part.start : part.stop]}, {}) for part in self._parts])

    def copy_learned(self, source: ArrayLike) -> None:
        """Gives each agent the parameters and the moments of another one; settings and environments do not change.

        An agent that was stopped continues if it takes those of one that runs.

        Args:
            source: P numbers of agents; the own number for an agent that keeps what it has, as each agent that is copied does.
        """
        state, index = self.state_dict(), torch.as_tensor(np.asarray(source))
        for name in COPIED:
            x = state["tensors"][name]
            state["tensors"][name] = x[index] if isinstance(x, Tensor) else {key: y[index] for key, y in x.items()}
        last_return = state["tensors"]["episodes"]["last_return"]
        last_return.view(self.args.num_agents, -1)[changed_agents(index.numpy())] = math.nan
        self.load_state_dict(state)


def _concatenate(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the tensors of all agents; those without an axis are equal in all parts."""
    result: dict[str, Any] = {}
    for name, x in parts[0].items():
        own = [part[name] for part in parts]
        result[name] = _concatenate(own) if isinstance(x, Mapping) else x if x.dim() == 0 else torch.cat(own)
    return result


def state_to_message(state: Mapping[str, Any]) -> Message:
    """Returns the message with a state.

    Args:
        state: the result of `state_dict` of a population.
    """
    values = {"seed": state["env"]["seed"], "iteration": state["iteration"]}
    return Message(values, {"tensors": to_arrays(state["tensors"]), "buffers": to_arrays(state["env"]["buffers"])})


def state_from_message(message: Message) -> dict[str, Any]:
    """Returns the state in a message.

    Args:
        message: the result of `state_to_message`.
    """
    env = {"buffers": to_tensors(message.arrays["buffers"]), "seed": message.values["seed"]}
    return {"tensors": to_tensors(message.arrays["tensors"]), "env": env, "iteration": message.values["iteration"]}


def answer(population: BatchedPopulation, message: Message) -> Message:
    """Calls a method of a population, and returns the message with its result.

    Args:
        population: the population.
        message: the name of the method and its arguments.
    """
    method = message.values["method"]
    if method == "advance":
        return Message({}, {"results": population.advance(message.values["iterations"]).numpy()})
    if method == "evaluate":
        return Message({}, {"returns": population.evaluate().numpy()})
    if method == "state_dict":
        return state_to_message(population.state_dict())
    if method == "load_state_dict":
        population.load_state_dict(state_from_message(message))
    elif method == "set_settings":
        population.set_settings(message.values["name"], message.values["values"])
    elif method == "stopped_at":
        return Message({}, {"stopped_at": population.stopped_at.numpy()})
    return Message({}, {})


def main() -> None:
    """Answers the messages on the standard input until it is closed."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    # Ctrl-C reaches all processes of a terminal. The one that reads the answers decides when the training ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    requests = sys.stdin.buffer
    settings = read_message(requests)
    if settings is None:
        return
    try:
        base, (seeds, *columns) = args_from_json(settings.values["base"]), (settings.values[name] for name in COLUMNS)
        assert isinstance(base, PPOArgs), "the algorithm is PPO"
        population = BatchedPopulation(PopulationArgs(base, len(seeds), tuple(seeds), *columns))
        write_message(answers, Message({}, {}))
        while (message := read_message(requests)) is not None:
            write_message(answers, answer(population, message))
    except Exception as error:
        write_message(answers, Message({"error": f"{type(error).__name__}: {error}"}, {}))
        raise


class Message(NamedTuple):
    """A message."""

    values: dict[str, Any]
    """What JSON can represent."""
    arrays: dict[str, Any]
    """Nested dicts of arrays."""


def write_message(file: IO[bytes], message: Message) -> None:
    """Writes a message.

    Args:
        file: a pipe.
        message: the message.
    """
    for part in (json.dumps(message.values).encode(), to_npz(flatten(message.arrays))):
        file.write(len(part).to_bytes(LENGTH_BYTES, "little") + part)
    file.flush()


def read_message(file: IO[bytes]) -> Message | None:
    """Reads a message; None if the other process has closed the pipe.

    Args:
        file: a pipe.
    """
    parts = []
    for _ in range(2):
        size = file.read(LENGTH_BYTES)
        if len(size) < LENGTH_BYTES:
            return None
        parts.append(file.read(int.from_bytes(size, "little")))
    with np.load(io.BytesIO(parts[1]), allow_pickle=False) as arrays:
        return Message(json.loads(parts[0]), nest({name: arrays[name] for name in arrays.files}))
