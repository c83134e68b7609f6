"""Exports trained policies to files of other formats, after a check that the file computes what the network computes."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gpuvec.errors import ExportError, MissingExtraError, install_command
from gpuvec.learners.algorithms import args_to_dict
from gpuvec.learners.environments import AgentSpaces
from gpuvec.learners.evaluation.players import action_distribution
from gpuvec.learners.networks.deterministic import DeterministicActorCritic
from gpuvec.learners.policy_files.c_header import c_prefix, to_c_header
from gpuvec.learners.policy_files.policy_file import DESCRIPTION, SUFFIX, describe_policies, write_file
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy, value_of

CHECKED_ROWS = (1, 3, 256)  # the sizes of the batches of a check
# The largest difference of an output, relative to it and to the largest output. Sums in another order differ by about 1e-6.
TOLERANCE = 1e-4
MAX_LOGIT = 1e7  # absolute value; logits of forbidden actions are larger
EXAMPLE_ROWS = 2  # torch.export takes a dimension of size 1 as fixed
SUFFIXES = {"safetensors": SUFFIX, "onnx": ".onnx", "torch": ".pt2", "c": ".h"}
Outputs = Mapping[str, NDArray[Any]]
Run = Callable[[tuple[Tensor, ...]], Outputs]
"""Runs an exported program: returns {name: array} of the outputs for inputs."""


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
    if file_format not in SUFFIXES:
        raise ValueError(f"format must be one of {', '.join(SUFFIXES)}, got {file_format!r}.")
    if path.suffix != SUFFIXES[file_format]:
        raise ValueError(f"a file of the format {file_format} ends with {SUFFIXES[file_format]}, got {path}.")
    if file_format == "safetensors":
        return write_file(path, policy.to_bytes(None if role is None else [policy.find_role(role)]), overwrite)
    role = policy.find_role(role)
    program = PolicyProgram(policy, role)
    description = describe_policies({role: args_to_dict(policy.args[role])}, {role: policy.spaces[role]})
    if file_format == "c":
        content = to_c_header(program, c_prefix(path.stem), description)
    else:
        content, run = CONVERTERS[file_format](program, DESCRIPTION, json.dumps(description))
        require_equal(program, run)
    return write_file(path, content, overwrite)


@torch.no_grad()
def require_equal(program: PolicyProgram, run: Run) -> None:
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


class PolicyProgram(nn.Module):
    """Maps `obs`, (R, ...), and in environments with action masks `action_mask`, (R, N) bool, to a tuple of outputs.

    The outputs are

    - `action`, (R,) or (R, K): the most probable action, as the environment takes it,
    - `logits`, (R, N), of discrete actions, or `mean`, (R, K), of continuous ones; not of DDPG, which has the action alone,
    - `value`, (R,): the expected return; not in environments whose value function takes observations of a critic.

    Args:
        policy: the policies.
        role: the role of the one that is copied. The copy is on the CPU, and computes in float32 also where the training had
            the precision bf16.
    """

    def __init__(self, policy: TrainedPolicy, role: str) -> None:
        super().__init__()
        self.spaces: AgentSpaces = policy.spaces[role]
        self.network: Any = copy.deepcopy(policy.networks[role]).cpu()
        for module in self.network.modules():
            if getattr(module, "dtype", None) == torch.bfloat16:
                module.dtype = torch.float32
        self.has_value = self.spaces.critic_observation is None
        is_deterministic = isinstance(self.network, DeterministicActorCritic)
        is_continuous = isinstance(self.spaces.action, gym.spaces.Box)
        self.parameter_names = () if is_deterministic else ("mean",) if is_continuous else ("logits",)
        self.input_names = ("obs", "action_mask") if self.spaces.has_masks else ("obs",)
        self.output_names = ("action", *self.parameter_names, *(("value",) if self.has_value else ()))
        self.eval()

    def forward(self, obs: Tensor, action_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Returns the outputs in the order of `output_names`.

        Args:
            obs: (R, ...).
            action_mask: (R, N) bool; None in environments without action masks.
        """
        distribution = action_distribution(self.network, obs, action_mask)
        outputs = self.network.control(distribution.mode()), *(getattr(distribution, name) for name in self.parameter_names)
        return (*outputs, value_of(self.network, obs)) if self.has_value else outputs

    def random_inputs(self, num_rows: int, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """Returns inputs for a check: observations with the normaliser's moments, and masks that allow half of the actions.

        Args:
            num_rows: R.
            rng: the source of random numbers.
        """
        space = self.spaces.observation
        assert isinstance(space, gym.spaces.Box), "observations are elements of a Box"
        shape = (num_rows, *(space.shape or (1,)))
        if space.dtype == np.uint8:
            obs = torch.from_numpy(rng.integers(space.low, space.high, shape, dtype=np.uint8, endpoint=True))
        else:
            obs = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
            if self.network.normalizer is not None:
                obs = (self.network.normalizer.mean + self.network.normalizer.var.sqrt() * obs).float()
        if not self.spaces.has_masks:
            return (obs,)
        parts = []
        for size in self._component_sizes():
            part = rng.random((num_rows, size)) < 0.5
            part[np.arange(num_rows), rng.integers(size, size=num_rows)] = True
            parts.append(part)
        return obs, torch.from_numpy(np.concatenate(parts, 1))

    def _component_sizes(self) -> tuple[int, ...]:
        """The numbers of choices of each component of a discrete action."""
        space = self.spaces.action
        return (int(space.n),) if isinstance(space, gym.spaces.Discrete) else tuple(map(int, space.nvec))  # type: ignore[attr-defined]  # a MultiDiscrete

    def describe_difference(self, expected: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> str:
        """Returns how the outputs of an exported program differ from those of this one, for the same inputs; "" for equal ones.

        Actions of almost equal probability count as equal.

        Args:
            expected: {name: array} of this program.
            outputs: {name: array} of the exported one.
        """
        for name in self.output_names:
            reference, output = expected[name], outputs[name]
            if output.shape != reference.shape or output.dtype != reference.dtype:
                return f"{name} is {output.dtype} {output.shape} in place of {reference.dtype} {reference.shape}"
            if np.issubdtype(reference.dtype, np.integer):
                is_equal = self._is_most_probable(expected["logits"], output)
            else:
                is_equal = np.allclose(output, reference, rtol=TOLERANCE, atol=TOLERANCE * _largest(reference))
            if not is_equal:
                difference = np.abs(output.astype(np.float64) - reference).max()
                return f"{name} differs by up to {difference:.3g}"
        return ""

    def _is_most_probable(self, logits: NDArray[Any], action: NDArray[Any]) -> bool:
        """Whether no action has a logit that is larger by more than the tolerance than that of `action`, (R,) or (R, K)."""
        indices = (action - self.spaces.action.start).reshape(len(action), -1).T  # type: ignore[attr-defined]  # of discrete spaces
        parts = np.split(logits, np.cumsum(self._component_sizes())[:-1], 1)
        margin = TOLERANCE * _largest(logits)
        for index, part in zip(indices, parts, strict=True):
            if not ((index >= 0) & (index < part.shape[1])).all():
                return False
            if (np.take_along_axis(part, index[:, None], 1)[:, 0] < part.max(1) - margin).any():
                return False
        return True


def _largest(values: NDArray[Any]) -> float:
    """The largest absolute value, at least 1, logits of forbidden actions excepted."""
    sizes = np.abs(values)
    return float(sizes.max(initial=1.0, where=sizes < MAX_LOGIT))


def to_onnx(program: PolicyProgram, name: str, text: str) -> tuple[bytes, Run]:
    """Returns the file of a program as an ONNX model, and the function that runs the file by onnxruntime.

    Args:
        program: the program.
        name: of an entry of the model's metadata.
        text: the content of the entry.

    Raises:
        ExportError: torch cannot export the network.
        MissingExtraError: onnx, onnxruntime or onnxscript is not installed.
    """
    try:
        import onnx  # noqa: F401  # whether it is there
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the format onnx needs {error.name}, which is not installed: {install_command('onnx')}"
        ) from error
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
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(inputs: tuple[Tensor, ...]) -> Outputs:
        arrays = {name: tensor.numpy() for name, tensor in zip(program.input_names, inputs, strict=True)}
        return dict(zip(program.output_names, session.run(list(program.output_names), arrays), strict=True))

    return content, run


def to_torch_program(program: PolicyProgram, name: str, text: str) -> tuple[bytes, Run]:
    """Returns the file of a program that `torch.export.load` reads, and the function that runs the file.

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
        # The file is loaded, so that what is checked is its content.
        module = torch.export.load(io.BytesIO(buffer.getvalue())).module()
    return buffer.getvalue(), lambda inputs: to_arrays(program, module(*inputs))


def to_arrays(program: PolicyProgram, outputs: tuple[Tensor, ...]) -> Outputs:
    """Returns {name: array} of the outputs of a program.

    Args:
        program: the program, which names them.
        outputs: in the order of the names.
    """
    return {name: tensor.numpy(force=True) for name, tensor in zip(program.output_names, outputs, strict=True)}


CONVERTERS: dict[str, Callable[[PolicyProgram, str, str], tuple[bytes, Run]]] = {"onnx": to_onnx, "torch": to_torch_program}


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
