"""Reads and writes policy files: safetensors with a description in the header. A file is only data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuvec.errors import CheckpointError, MissingExtraError, install_command
from gpuvec.learners.policy_files.policy_schema import parse_description, require_dtypes, split_tensors
from gpuvec.learners.runs.content_checks import require_settings
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.trusted_code import SIGNATURE, Signature, digest_of, import_code, sign

if TYPE_CHECKING:
    from torch import Tensor

DESCRIPTION = "gpuvec_policy"  # the key of the description in the metadata of the file
SUFFIX = ".safetensors"
MAX_BYTES = 1 << 30  # of a file


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
            require_dtypes({name: file.get_slice(name).get_dtype() for name in names})
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
