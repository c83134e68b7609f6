"""A process that trains a part of the agents of a population on one core of a CPU.

It reads the settings from its standard input, and then calls of the methods of `BatchedPopulation`, which it answers on its
standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import torch

from gpuvec.learners.algorithms import args_from_json, args_to_dict
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.population.batched.batched_population import BatchedPopulation
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.processes.worker_messages import Message, read_message, write_message
from gpuvec.learners.population.state.state_arrays import to_arrays, to_tensors


def args_to_message(args: PopulationArgs) -> Message:
    """Returns the message with the settings of a part of the agents.

    Args:
        args: their settings, resolved.
    """
    values = {"base": args_to_dict(args.base), "seeds": args.seeds, "settings": args.settings, "params": args.params}
    return Message(values, {})


def args_from_message(message: Message) -> PopulationArgs:
    """Returns the settings in a message.

    Args:
        message: the result of `args_to_message`.
    """
    values = message.values
    base = args_from_json(values["base"])
    assert isinstance(base, PPOArgs), "the algorithm is PPO"
    return PopulationArgs(base, len(values["seeds"]), tuple(values["seeds"]), values["settings"], values["params"])


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
        population = BatchedPopulation(args_from_message(settings))
        write_message(answers, Message({}, {}))
        while (message := read_message(requests)) is not None:
            write_message(answers, answer(population, message))
    except Exception as error:
        write_message(answers, Message({"error": f"{type(error).__name__}: {error}"}, {}))
        raise
