"""The command `gpuvec export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from gpuvec.cli.env_lookup import complete_policy_name, find_policy
from gpuvec.cli.output_file import require_writable
from gpuvec.cli.progress import waiting
from gpuvec.cli.terminal import print_lines


def export(
    policy: Annotated[str, tyro.conf.Positional],
    format: Literal["safetensors", "onnx", "torch", "c"],
    to: Path,
    role: str | None = None,
    force: bool = False,
    trust: bool = False,
) -> int:
    """Export a trained policy: as a policy file, which `gpuvec.load_policy` reads, as ONNX, as a program of
    torch.export, or as a header in C.

    ONNX models and programs take a batch of observations of any size, and return the most probable actions, the logits or
    means, and the values. They are run on random observations and compared with the network before the file is written. A
    header in C99 has the weights of a perceptron and the functions that act, whose names begin with the name of the file.

    Args:
        policy: a run folder, a checkpoint-<iteration>.pt, a policy file, or the name of a policy that comes with gpuvec.
        format: safetensors (a policy file), onnx, torch (a program of torch.export), or c (a header in C99).
        to: the file, which ends with .safetensors, .onnx, .pt2 or .h.
        role: the role of the policy, if there are several. A policy file has all of them by default.
        force: replace the file if it exists.
        trust: import the Python modules that the policy names for its environment, algorithm and network. Importing runs their
            code.
    """
    require_writable(to, force)
    policy = complete_policy_name(policy)
    with waiting("loading PyTorch"):
        from gpuvec.learners.algorithms import args_to_dict
        from gpuvec.learners.policy_files.export import export_policy
        from gpuvec.learners.runs.trusted_code import signing_problem

    trained_policy = find_policy(policy, trust=trust)
    with waiting(f"exporting {policy}"):
        export_policy(trained_policy, format, to, role, overwrite=force)
    check = "" if format in ("safetensors", "c") else ", which computes what the network computes on random observations"
    print_lines(f"exported   {to} ({to.stat().st_size:,} bytes){check}")
    if format == "safetensors":
        problem = signing_problem({role: args_to_dict(args) for role, args in trained_policy.args.items()})
        print_lines(*([f"trust      {problem}"] if problem else []))
    return 0
