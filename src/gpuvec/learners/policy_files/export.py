"""Exports trained policies to files of other formats, after a check that the file computes what the network computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gpuvec.errors import ExportError
from gpuvec.learners.algorithms import args_to_dict
from gpuvec.learners.policy_files.c_header import c_prefix, to_c_header
from gpuvec.learners.policy_files.policy_file import DESCRIPTION, SUFFIX, write_file
from gpuvec.learners.policy_files.policy_program import PolicyProgram
from gpuvec.learners.policy_files.policy_schema import describe_policies
from gpuvec.learners.policy_files.program_formats import FORMATS, Outputs, to_arrays
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy

CHECKED_ROWS = (1, 3, 256)  # the sizes of the batches of a check


def export_policy(
    policy: TrainedPolicy, file_format: str, path: Path | str, role: str | None = None, overwrite: bool = False
) -> Path:
    """Writes trained policies to a file, and returns its path.

    ONNX models and torch.export programs are those of `PolicyProgram`. They are run on random observations before the file is
    written, by onnxruntime and by torch, and compared with the network. A header in C, of a perceptron, is not run.

    Args:
        policy: the policies.
        file_format: "safetensors" for a policy file, "onnx", "torch" for a program of torch.export, or "c" for a
            header in C99, whose names begin with the name of the file.
        path: of the file, which ends with .safetensors, .onnx, .pt2 or .h.
        role: the role of the policy that is exported; None for all in a policy file, and otherwise for the only one.
        overwrite: whether the file may exist.

    Raises:
        ValueError: no such format, a path with another suffix, or a header whose name is no name of C.
        StateError: there is no policy of that role, or there are several and `role` is None.
        ExportError: the format cannot have the network, or the result computes other numbers; nothing is written.
        FileExistsError: the file exists, and `overwrite` is false.
        FileNotFoundError: the folder of the file does not exist.
        RunWriteError: the file cannot be written.
        MissingExtraError: a package that the format needs is not installed.
    """
    path = Path(path)
    suffixes = {"safetensors": SUFFIX, **{name: each.suffix for name, each in FORMATS.items()}, "c": ".h"}
    if file_format not in suffixes:
        raise ValueError(f"format must be one of {', '.join(suffixes)}, got {file_format!r}.")
    if path.suffix != suffixes[file_format]:
        raise ValueError(f"a file of the format {file_format} ends with {suffixes[file_format]}, got {path}.")
    if file_format == "safetensors":
        content = policy.to_bytes(None if role is None else [policy.find_role(role)])
    elif file_format == "c":
        role = policy.find_role(role)
        description = describe_policies({role: args_to_dict(policy.args[role])}, {role: policy.spaces[role]})
        content = to_c_header(PolicyProgram(policy, role), c_prefix(path.stem), description)
    else:
        content = export_program(policy, file_format, policy.find_role(role))
    return write_file(path, content, overwrite)


def export_program(policy: TrainedPolicy, file_format: str, role: str) -> bytes:
    """Returns the content of a file with the program of a policy, which was compared with the network.

    Args:
        policy: the policies.
        file_format: "onnx" or "torch".
        role: the role of the policy.

    Raises:
        ExportError: torch cannot export the network, or the result computes other numbers.
        MissingExtraError: a package that the format needs is not installed.
    """
    program = PolicyProgram(policy, role)
    description = describe_policies({role: args_to_dict(policy.args[role])}, {role: policy.spaces[role]})
    program_format = FORMATS[file_format]
    content = program_format.convert(program, DESCRIPTION, json.dumps(description))
    require_equal(program, program_format.load(content, program))
    return content


@torch.no_grad()
def require_equal(program: PolicyProgram, run: Callable[[tuple[Tensor, ...]], Outputs]) -> None:
    """Runs an exported program on random observations, and compares it with the network.

    Args:
        program: the program that was exported.
        run: returns {name: array} of the exported program for inputs.

    Raises:
        ExportError: the numbers differ.
    """
    rng = np.random.default_rng(0)
    for num_rows in CHECKED_ROWS:
        inputs = program.random_inputs(num_rows, rng)
        if difference := program.describe_difference(to_arrays(program, program(*inputs)), run(inputs)):
            raise ExportError(
                f"the exported program does not compute what the network computes: for {num_rows} observations, {difference}. "
                "Nothing was written; please report this with the versions of torch, onnx and onnxruntime."
            )
