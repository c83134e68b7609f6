"""Converts a `PolicyProgram` to ONNX and to a torch.export program, and runs the results."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuvec.errors import ExportError, MissingExtraError, install_command
from gpuvec.learners.policy_files.policy_program import PolicyProgram

EXAMPLE_ROWS = 2  # torch.export takes a dimension of size 1 as fixed
Outputs = Mapping[str, NDArray[Any]]


class ProgramFormat(NamedTuple):
    """A file format of programs."""

    suffix: str
    convert: Callable[[PolicyProgram, str, str], bytes]
    """Returns the content of a file for a program, with a name and a text for its metadata."""
    load: Callable[[bytes, PolicyProgram], Callable[[tuple[Tensor, ...]], Outputs]]
    """Returns the function that runs the program in a file: {name: array} of the outputs for inputs."""


def to_onnx(program: PolicyProgram, name: str, text: str) -> bytes:
    """Returns a program as an ONNX model.

    Args:
        program: the program.
        name: of an entry of the model's metadata.
        text: the content of the entry.

    Raises:
        ExportError: torch cannot export the network.
        MissingExtraError: onnx, onnxruntime or onnxscript is not installed.
    """
    _require_onnx()
    with _quiet_export():
        exported = torch.onnx.export(
            program, _example_inputs(program), dynamo=True, dynamic_shapes=_dynamic_shapes(program),
            input_names=program.input_names, output_names=program.output_names, verbose=False,
        )  # fmt: skip
        assert exported is not None, "the exporter by torch.export returns a program"
        model = exported.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = name, text
    content: bytes = model.SerializeToString()
    return content


def load_onnx(content: bytes, program: PolicyProgram) -> Callable[[tuple[Tensor, ...]], Outputs]:
    """Returns a function that runs an ONNX model by onnxruntime: {name: array} of the outputs for inputs.

    Args:
        content: of the file.
        program: the program that was converted, which names inputs and outputs.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(inputs: tuple[Tensor, ...]) -> Outputs:
        arrays = {name: tensor.numpy() for name, tensor in zip(program.input_names, inputs, strict=True)}
        return dict(zip(program.output_names, session.run(list(program.output_names), arrays), strict=True))

    return run


def to_torch_program(program: PolicyProgram, name: str, text: str) -> bytes:
    """Returns a program as a file that `torch.export.load` reads.

    Args:
        program: the program.
        name: of an extra file in it.
        text: the content of the extra file.

    Raises:
        ExportError: torch cannot export the network.
    """
    buffer = io.BytesIO()
    with _quiet_export():
        exported = torch.export.export(program, _example_inputs(program), dynamic_shapes=_dynamic_shapes(program))
        torch.export.save(exported, buffer, extra_files={name: text})
    return buffer.getvalue()


def load_torch_program(content: bytes, program: PolicyProgram) -> Callable[[tuple[Tensor, ...]], Outputs]:
    """Returns a function that runs a torch.export program: {name: array} of the outputs for inputs.

    Args:
        content: of the file.
        program: the program that was converted, which names the outputs.
    """
    with _quiet_export():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: tuple[Tensor, ...]) -> Outputs:
        return to_arrays(program, module(*inputs))

    return run


def to_arrays(program: PolicyProgram, outputs: tuple[Tensor, ...]) -> Outputs:
    """Returns {name: array} of the outputs of a program.

    Args:
        program: the program, which names them.
        outputs: in the order of the names.
    """
    return {name: tensor.numpy(force=True) for name, tensor in zip(program.output_names, outputs, strict=True)}


FORMATS = {
    "onnx": ProgramFormat(".onnx", to_onnx, load_onnx),
    "torch": ProgramFormat(".pt2", to_torch_program, load_torch_program),
}


def _example_inputs(program: PolicyProgram) -> tuple[Tensor, ...]:
    return program.random_inputs(EXAMPLE_ROWS, np.random.default_rng(0))


def _dynamic_shapes(program: PolicyProgram) -> tuple[dict[int, Any], ...]:
    """For each input its dimensions that are not fixed: the first one, which all share."""
    return ({0: torch.export.Dim("batch")},) * len(program.input_names)


@contextmanager
def _quiet_export() -> Iterator[None]:
    """Hides what torch's exporters report about their own code, and turns their errors into ExportError."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            for category in (FutureWarning, DeprecationWarning):
                warnings.simplefilter("ignore", category)
            # Both inputs share their dimension on purpose.
            warnings.filterwarnings("ignore", "# The axis name: batch will not be used", UserWarning)
            yield
    except RuntimeError as error:  # of which the errors of both exporters are subclasses
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ExportError(f"torch cannot export this network: {reason[:300]}") from error
    finally:
        logger.setLevel(level)


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401  # whether it is there
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the format onnx needs {error.name}, which is not installed: {install_command('onnx')}"
        ) from error
