"""Policy files: safetensors with a description in the header, and the checks of what a file contains. A file is only data.

Anybody may have written the file, so names, types and sizes are checked before a network is made of it, as for a checkpoint.
The description is one JSON object::

    {"format": 1, "gpuvec": "0.1.0", "env": "gpuvec/CartPole-v1", "params": {},
     "policies": {"all": {"settings": {"algorithm": "ppo", "hidden": [64, 64], ...},
                          "spaces": {"observation": {...}, "action": {...}, "critic_observation": null, "has_masks": false}}}}

Settings are those of the training without env and params. The tensors are named "<role>/<name in the network>".
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

import gpuvec
from gpuvec.errors import CheckpointError, MissingExtraError, StateError, install_command
from gpuvec.learners.algorithms import describes_network
from gpuvec.learners.config.setting_types import with_tuples
from gpuvec.learners.config.training_config import OnPolicyArgs, TrainingArgs
from gpuvec.learners.environments import AgentSpaces
from gpuvec.learners.runs.content_checks import require_keys, require_mapping, require_settings
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.records import parse_json
from gpuvec.learners.runs.trusted_code import SIGNATURE, Signature, digest_of, import_code, sign

if TYPE_CHECKING:
    from torch import Tensor

DESCRIPTION = "gpuvec_policy"  # the key of the description in the metadata of the file
SUFFIX = ".safetensors"
MAX_BYTES = 1 << 30  # of a file
FORMAT = 1  # the version of the structure, increased by each change that makes older files unreadable
DTYPES = ("F32", "F64")  # of tensors, as safetensors names them
NONNEGATIVE = tuple(f"{name}.{part}" for name in ("normalizer", "critic_normalizer") for part in ("var", "count"))
HEAD_MULTIPLE = 4  # the outputs of a network with a common trunk are a multiple of this, see `SharedMLP`
KEYS = ("format", "gpuvec", "env", "params", "policies")
ENV_SETTINGS = ("env", "params")  # settings of a training that all policies of a file share
# Settings that were added to this format, which older files lack, with what their trainings did.
ADDED_SETTINGS: dict[str, Any] = {
    "evaluate_every": None,
    "evaluate_episodes": 32,
    "evaluate_params": {},
    "network": None,
    "network_args": {},
}


def write_file(path: Path | str, content: bytes, overwrite: bool = False) -> Path:
    """Writes a file that a reader finds complete or not at all.

    Args:
        path: the path of the file, in a folder that exists.
        content: the whole content.
        overwrite: whether the file may exist.

    Raises:
        FileExistsError: the file exists, and `overwrite` is false.
        FileNotFoundError: the folder does not exist.
        RunWriteError: the file cannot be written; the previous one is unchanged.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists: give another name, or --force to replace it.")
    with RunFolder(path.parent) as folder:
        folder.write(path.name, content)
    return path


def to_bytes(description: Mapping[str, Any], networks: Mapping[str, Mapping[str, Tensor]]) -> bytes:
    """Returns the content of a policy file.

    Args:
        description: the result of `describe_policies`.
        networks: {role: {name: tensor}}.

    Raises:
        ValueError: the file would be larger than `read_policy_file` reads.
        MissingExtraError: safetensors is not installed.
    """
    _require_safetensors()
    from safetensors.torch import save

    tensors = {
        f"{role}/{name}": tensor.detach().cpu().contiguous()
        for role, network in networks.items()
        for name, tensor in network.items()
    }
    metadata = {DESCRIPTION: json.dumps(description)}
    policies = {role: {**each["settings"], "env": description["env"]} for role, each in description["policies"].items()}
    if signature := sign(policies, _digest(metadata[DESCRIPTION], tensors)):
        metadata[SIGNATURE] = signature
    content = save(tensors, metadata)
    if len(content) > MAX_BYTES:
        raise ValueError(f"the networks have {len(content):,} bytes, and a policy file at most {MAX_BYTES:,}.")
    return content


def read_policy_file(path: Path | str, framework: str = "pt", trust: bool = False) -> dict[str, Any]:
    """Reads a policy file. It is only data: nothing in it is executed.

    Args:
        path: the path of the file.
        framework: "pt" for tensors on the CPU, or "numpy" for arrays, which needs no PyTorch.
        trust: whether the modules that it names may be imported, which runs their code.

    Returns:
        {"args": {role: settings}, "policies": {role: {"network": {name: tensor}}}}, as in a checkpoint; and "spaces" and
        "gpuvec", see `parse_description`.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is not a policy file, is of another version, or is damaged, or names a module that is neither
            imported nor trusted.
        MissingExtraError: safetensors is not installed.
    """
    _require_safetensors()
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no policy file {path}: `gpuvec export RUN --format safetensors --to FILE` writes one."
        )
    if not path.is_file():
        raise CheckpointError(f"{path} cannot be read as a policy file: it is not a regular file.")
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"{path} cannot be read as a policy file: it has more than {MAX_BYTES:,} bytes.")
    try:
        with safe_open(path, framework=framework, device="cpu") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            if DESCRIPTION not in metadata:
                raise CheckpointError(f"its header has no {DESCRIPTION}, so that gpuvec did not write it.")
            contents = parse_description(metadata[DESCRIPTION])
            for name in names:  # before any is read: other libraries cannot read or test each dtype
                if (dtype := file.get_slice(name).get_dtype()) not in DTYPES:
                    problem = f"has the dtype {dtype}, and those of a policy are {', '.join(DTYPES)}"
                    raise CheckpointError(f"{reprlib.repr(name)} {problem}.")
            tensors = {name: file.get_tensor(name) for name in names}
            networks = split_tensors(tensors, contents["args"])
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be used as a policy file: {error}") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} cannot be read as a policy file: {error}. The file is damaged or of another kind: copy it again, or "
            "export the policy again."
        ) from error
    signature = Signature(metadata.get(SIGNATURE), lambda: _digest(metadata[DESCRIPTION], tensors))
    import_code(contents["args"], path, trust, signature)
    for role, settings in contents["args"].items():
        require_settings(settings, f"{path} cannot be used as a policy file: policies.{role}.settings")
    return {**contents, "policies": {role: {"network": network} for role, network in networks.items()}}


def _digest(description: str, tensors: Mapping[str, Any]) -> bytes:
    """The SHA-256 of all that a policy file contains; `tensors` is {name: tensor on the CPU, or array}."""
    content = hashlib.sha256(digest_of(description))
    for name in sorted(tensors):
        array = np.ascontiguousarray(np.asarray(tensors[name]))
        content.update(digest_of([name, array.dtype.str, array.shape]))
        content.update(array.tobytes())
    return content.digest()


def _require_safetensors() -> None:
    try:
        import safetensors  # noqa: F401  # whether it is there
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"policy files need safetensors, which is not installed: {install_command('train')}") from error


def describe_policies(settings: Mapping[str, Mapping[str, Any]], spaces: Mapping[str, AgentSpaces]) -> dict[str, Any]:
    """Returns the description of policies for the header of a file.

    Args:
        settings: {role: the result of `args_to_dict`}, all of the same environment.
        spaces: {role: the spaces of one agent}.
    """
    policies = {
        role: {
            "settings": {name: value for name, value in values.items() if name not in ENV_SETTINGS},
            "spaces": describe_spaces(spaces[role]),
        }
        for role, values in settings.items()
    }
    first = next(iter(settings.values()))
    shared = {name: first[name] for name in ENV_SETTINGS}
    return {"format": FORMAT, "gpuvec": gpuvec.__version__, **shared, "policies": policies}


def describe_spaces(spaces: AgentSpaces) -> dict[str, Any]:
    """Returns what a network depends on in the spaces of one agent, as JSON has it.

    Args:
        spaces: the spaces.
    """
    critic = spaces.critic_observation
    return {
        "observation": describe_space(spaces.observation, has_bounds=spaces.observation.dtype == np.uint8),
        "action": describe_space(spaces.action, has_bounds=True),
        "critic_observation": None if critic is None else describe_space(critic, has_bounds=False),
        "has_masks": spaces.has_masks,
    }


def describe_space(space: gym.Space[Any], has_bounds: bool) -> dict[str, Any]:
    """Returns the kind and the sizes of a space, as JSON has them.

    Args:
        space: Discrete, MultiDiscrete or Box.
        has_bounds: whether the bounds of a Box matter: those of an action are its range, and those of pixels their scale.
    """
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    box: dict[str, Any] = {"kind": type(space).__name__, "shape": list(space.shape or ()), "dtype": str(space.dtype)}
    if has_bounds and isinstance(space, gym.spaces.Box):
        box |= {name: _bound(values) for name, values in (("low", space.low), ("high", space.high))}
    return box


def _bound(values: Any) -> Any:
    """A bound as text if all elements share it, which also represents infinity, and otherwise as a list of texts."""
    flat = [repr(value) for value in np.ravel(values).tolist()]
    return flat[0] if len(set(flat)) == 1 else flat


def parse_description(text: str) -> dict[str, Any]:
    """Parses the description in the header of a file, and checks its structure. Settings and spaces are not checked yet.

    Args:
        text: the JSON.

    Returns:
        {"args": {role: settings}, "spaces": {role: description}, "gpuvec": the version that wrote the file}.

    Raises:
        CheckpointError: it is of another format, or a part is missing or wrong; the message names the part.
    """
    values = require_mapping(parse_json(text.encode()), "the description in the header")
    if values.get("format") != FORMAT:
        version = reprlib.repr(values.get("gpuvec", "unknown"))
        raise CheckpointError(
            f"it has the format {reprlib.repr(values.get('format'))}, written by gpuvec {version}; this gpuvec, "
            f"{gpuvec.__version__}, reads {FORMAT}: install the version that wrote it, or export the policy again."
        )
    require_keys(values, KEYS, "", exact=True)
    args, spaces = {}, {}
    for role, policy in require_mapping(values["policies"], "policies", may_be_empty=False).items():
        path = f"policies.{role}"
        if not role or "/" in role:
            raise CheckpointError(f"{path} must be a role without a slash.")
        require_keys(require_mapping(policy, path), ("settings", "spaces"), path, exact=True)
        settings = require_mapping(policy["settings"], f"{path}.settings")
        settings = {**with_tuples(settings), **{name: values[name] for name in ENV_SETTINGS}}
        args[role], spaces[role] = {**ADDED_SETTINGS, **settings}, require_mapping(policy["spaces"], f"{path}.spaces")
    if not isinstance(values["gpuvec"], str):
        raise CheckpointError(f"gpuvec must be the version that wrote the file, got {reprlib.repr(values['gpuvec'])}.")
    return {"args": args, "spaces": spaces, "gpuvec": values["gpuvec"]}


def split_tensors(tensors: Mapping[str, Any], roles: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns {role: {name: tensor}} of the tensors in a file.

    Args:
        tensors: {"<role>/<name>": tensor on the CPU, or array}.
        roles: a mapping whose keys are the roles of the description.

    Raises:
        CheckpointError: a tensor of another role, a number that is not finite, or a moment that is negative.
    """
    networks: dict[str, dict[str, Any]] = {role: {} for role in roles}
    for full_name, tensor in tensors.items():
        role, _, name = full_name.partition("/")
        if role not in networks:
            raise CheckpointError(
                f"it has a tensor {reprlib.repr(full_name)}, and the description has policies of {', '.join(roles)}."
            )
        array = np.asarray(tensor)
        if not np.isfinite(array).all():
            raise CheckpointError(f"policies.{role}.network.{name} is not finite: training diverged before it was saved.")
        if name in NONNEGATIVE and (array < 0.0).any():
            raise CheckpointError(f"policies.{role}.network.{name} must be at least 0: the file is damaged.")
        networks[role][name] = tensor
    return networks


def is_perceptron(settings: TrainingArgs, space: Mapping[str, Any]) -> bool:
    """Returns whether a policy has perceptrons of float32 that are no part of a convolution, which need no PyTorch.

    Args:
        settings: of the policy.
        space: the description of an agent's observations.
    """
    shape = space.get("shape")
    if not isinstance(settings, OnPolicyArgs) or not describes_network(settings):
        return False
    return settings.precision == "tf32" and isinstance(shape, list) and len(shape) == 1


def perceptron_tensors(args: OnPolicyArgs, spaces: AgentSpaces) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns {name: (shape, dtype)} of the network that the settings describe, as `networks.actor_critic` has it.

    Args:
        args: the settings, of a perceptron.
        spaces: of one agent.
    """
    critic = spaces.critic_observation
    features, outputs = (num_features(spaces.observation), num_outputs(spaces.action))
    critic_features = features if critic is None else num_features(critic)
    if args.shared:
        padded_outputs = -(-(outputs + 1) // HEAD_MULTIPLE) * HEAD_MULTIPLE
        layers = _layers("body.trunk", (features, *args.hidden), args)
        layers["body.head"] = args.hidden[-1], padded_outputs
    else:
        layers = _layers("body.actor", (features, *args.hidden, outputs), args)
        layers |= _layers("body.critic", (critic_features, *args.hidden, 1), args)
    tensors: dict[str, tuple[tuple[int, ...], str]]
    tensors = {f"{name}.weight": (pair[::-1], "float32") for name, pair in layers.items()}
    tensors |= {f"{name}.bias": ((pair[1],), "float32") for name, pair in layers.items()}
    if isinstance(spaces.action, gym.spaces.Box):
        tensors["log_std"] = (outputs,), "float32"
    if args.normalize:
        normalizers = {"normalizer": features} | ({} if critic is None else {"critic_normalizer": critic_features})
        for name, size in normalizers.items():
            tensors |= {f"{name}.{part}": ((size,), "float64") for part in ("mean", "var")}
            tensors[f"{name}.count"] = (), "float64"
    return tensors


def _layers(part: str, sizes: tuple[int, ...], args: OnPolicyArgs) -> dict[str, tuple[int, int]]:
    """{name: (inputs, outputs)} of the layers of a perceptron; a tanh is a module of its own and has a number, too."""
    stride = 1 if args.activation == "relu" else 2
    return {f"{part}.{stride * k}": pair for k, pair in enumerate(pairwise(sizes))}


def num_features(space: gym.Space[Any]) -> int:
    """Returns the number of features of an observation `space`."""
    return math.prod(space.shape or (1,))


def num_outputs(space: gym.Space[Any]) -> int:
    """Returns the number of outputs of a policy for an action `space`: Discrete, MultiDiscrete or Box."""
    if isinstance(space, gym.spaces.Box):
        return int(space.shape[0])
    return int(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec.sum())  # type: ignore[attr-defined]


def tensor_type(tensor: Any) -> tuple[tuple[int, ...], str]:
    """Returns (shape, dtype) of a tensor or an array, such as ((64, 4), "float32")."""
    return tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")


def require_tensors(network: Mapping[str, Any], expected: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    """Checks the names, the shapes and the dtypes of the tensors or arrays of a network.

    Args:
        network: {name: tensor}.
        expected: {name: (shape, dtype)}.

    Raises:
        StateError: a tensor is missing, unknown or another one.
    """
    types = {name: tensor_type(tensor) for name, tensor in network.items()}
    for name in dict.fromkeys([*expected, *types]):
        if types.get(name) != expected.get(name):
            each_type = (each.get(name) for each in (types, expected))
            is_type, expected_type = (f"{each[1]} of shape {each[0]}" if each else "no tensor" for each in each_type)
            raise StateError(
                f"the file is of another network: give the body that it was trained with. Its {reprlib.repr(name)} is "
                f"{is_type}, and {expected_type} is expected."
            )


def require_same_spaces(description: Mapping[str, Any], spaces: AgentSpaces, args: TrainingArgs, version: str) -> None:
    """Checks that the environment has the spaces for which a policy was trained.

    Args:
        description: the result of `describe_spaces` in the file.
        spaces: those of the environment.
        args: the settings, for the message.
        version: of gpuvec that wrote the file, for the message.

    Raises:
        StateError: the spaces differ; the message names the first difference.
    """
    expected = describe_spaces(spaces)
    for name, value in expected.items():
        if description.get(name) != value:
            raise StateError(
                f"the policy is for {name} {reprlib.repr(description.get(name))}, and {args.env} with params {args.params} has "
                f"{value}: use gpuvec {version[:20]}, which wrote the file, or parameters with which the environment has these "
                "spaces."
            )
