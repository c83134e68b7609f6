"""Exports of trained policies: ONNX models and programs of torch.export compute what the network computes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
pytest.importorskip("tyro")

from tests.support.random_policies import CASES

from gpuvec.cli import main
from gpuvec.errors import ExportError, StateError
from gpuvec.learners.policy_files import export
from gpuvec.learners.policy_files.export import PolicyProgram, export_policy, require_equal, to_arrays
from gpuvec.learners.policy_files.policy_file import DESCRIPTION
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy

OUTPUTS = {
    "discrete": ["action", "logits", "value"],
    "means": ["action", "mean", "value"],
    "ddpg": ["action", "value"],
    "image": ["action", "logits", "value"],
    "bf16": ["action", "logits", "value"],
    "masked": ["action", "logits", "value"],
    "components": ["action", "logits", "value"],
    "roles": ["action", "logits", "value"],
    "critic": ["action", "logits"],
}


def role_of(name: str) -> str:
    return "watcher" if name == "roles" else "all"


@pytest.mark.parametrize("name", CASES)
def test_an_onnx_model_computes_what_the_policy_computes(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    policy, role = TrainedPolicy(CASES[name].contents()), role_of(name)
    file = export_policy(policy, "onnx", tmp_path / "policy.onnx", role)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == OUTPUTS[name]
    assert {value.shape[0] for value in [*session.get_inputs(), *session.get_outputs()]} == {"batch"}
    description = json.loads(session.get_modelmeta().custom_metadata_map[DESCRIPTION])
    assert description["env"] == CASES[name].env
    for num_rows in (1, 9):
        obs, *mask = (x.numpy() for x in PolicyProgram(policy, role).random_inputs(num_rows, np.random.default_rng(num_rows)))
        arrays = {"obs": obs, **({"action_mask": mask[0]} if mask else {})}
        results = dict(zip(OUTPUTS[name], session.run(None, arrays), strict=True))
        if name == "bf16":  # the network itself has 8 significant bits
            assert np.allclose(results["value"], policy.value(obs), atol=0.1, rtol=0.1)
            continue
        actions = policy.act(obs, mask[0] if mask else None, role=role)
        assert np.allclose(results["action"], actions, atol=1e-4)
        assert results["action"].dtype == actions.dtype
        if name != "critic":
            assert np.allclose(results["value"], policy.value(obs, role=role), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_torch_program_computes_what_the_policy_computes(name: str, tmp_path: Path) -> None:
    policy, role = TrainedPolicy(CASES[name].contents()), role_of(name)
    file = export_policy(policy, "torch", tmp_path / "policy.pt2", role)
    extra_files = {DESCRIPTION: ""}
    module = torch.export.load(io.BytesIO(file.read_bytes()), extra_files=extra_files).module()
    assert json.loads(extra_files[DESCRIPTION])["env"] == CASES[name].env
    program = PolicyProgram(policy, role)
    assert list(program.output_names) == OUTPUTS[name]
    inputs = program.random_inputs(5, np.random.default_rng(3))
    with torch.no_grad():
        for output, expected in zip(module(*inputs), program(*inputs), strict=True):
            assert torch.allclose(output, expected, atol=1e-4, rtol=1e-4)


# ---- the check of an exported program


@pytest.mark.parametrize("name", ["discrete", "masked", "components", "means", "roles"])
def test_another_program_is_reported(name: str) -> None:
    """A program whose numbers or actions differ does not pass the check that the program itself passes."""
    program = PolicyProgram(TrainedPolicy(CASES[name].contents()), role_of(name))
    require_equal(program, lambda inputs: to_arrays(program, program(*inputs)))
    for output in program.output_names:

        def changed(inputs: Any, output: str = output) -> dict[str, Any]:
            arrays = dict(to_arrays(program, program(*inputs)))
            is_index = arrays[output].dtype == np.int64
            start, count = (1, 1) if is_index else (0, 0)
            arrays[output] = (arrays[output] + start) % (2 + count) if is_index else arrays[output] * 1.001 + 0.001
            return arrays

        with pytest.raises(ExportError, match=f"{output} differs by up to .* Nothing was written"):
            require_equal(program, changed)
    with pytest.raises(ExportError, match=r"action is .* in place of"):
        require_equal(program, lambda inputs: {**to_arrays(program, program(*inputs)), "action": np.zeros(1)})


def test_nothing_is_written_if_the_program_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TrainedPolicy(CASES["discrete"].contents())
    other = PolicyProgram(TrainedPolicy({**CASES["discrete"].contents()}), "all")
    with torch.no_grad():
        other.network.body.actor[0].weight.mul_(-1.0)
    converted = export.CONVERTERS["torch"](other, DESCRIPTION, "")
    monkeypatch.setitem(export.CONVERTERS, "torch", lambda *arguments: converted)
    with pytest.raises(ExportError, match="does not compute what the network computes"):
        export_policy(policy, "torch", tmp_path / "policy.pt2")
    assert not list(tmp_path.iterdir())


def test_a_network_that_torch_cannot_export_is_reported(tmp_path: Path) -> None:
    policy = TrainedPolicy(CASES["discrete"].contents())
    policy.networks["all"].body.policy = lambda obs: obs[:, :2] if float(obs.sum()) > 0 else obs[:, 2:]
    with pytest.raises(ExportError, match="torch cannot export this network: "):
        export_policy(policy, "torch", tmp_path / "policy.pt2")
    assert not list(tmp_path.iterdir())


# ---- the command


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    return export_policy(TrainedPolicy(CASES["discrete"].contents()), "safetensors", tmp_path / "policy.safetensors")


def test_the_command_writes_each_format(policy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    for file_format, suffix in (("safetensors", ".safetensors"), ("onnx", ".onnx"), ("torch", ".pt2")):
        to = policy_file.parent / f"exported{suffix}"
        assert main(["export", str(policy_file), "--format", file_format, "--to", str(to)]) == 0
        assert f"exported   {to} ({to.stat().st_size:,} bytes)" in capsys.readouterr().out
    assert (policy_file.parent / "exported.safetensors").read_bytes() == policy_file.read_bytes()


def test_an_existing_file_is_replaced_with_force_alone(policy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = policy_file.parent / "other.safetensors"
    to.write_text("mine")
    command = ["export", str(policy_file), "--format", "safetensors", "--to", str(to)]
    assert main(command) == 1
    assert f"{to} exists: give another name, or --force to replace it." in capsys.readouterr().err
    assert to.read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert to.read_bytes() == policy_file.read_bytes()


@pytest.mark.parametrize(
    ("file_format", "name", "message"),
    [
        ("onnx", "policy.pt2", "a file of the format onnx ends with .onnx, got "),
        ("torch", "missing/policy.pt2", "there is no folder "),
    ],
)
def test_other_paths_are_refused(
    policy_file: Path, file_format: str, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    to = policy_file.parent / name
    assert main(["export", str(policy_file), "--format", file_format, "--to", str(to)]) == 1
    assert message in capsys.readouterr().err
    assert not to.exists()


def test_programs_are_of_one_role(tmp_path: Path) -> None:
    policy = TrainedPolicy(CASES["roles"].contents())
    with pytest.raises(StateError, match="policies of lamp, watcher, runner: give one of these as role, not None"):
        export_policy(policy, "torch", tmp_path / "policy.pt2")
    with pytest.raises(ValueError, match="format must be one of safetensors, onnx, torch, c, got 'zip'"):
        export_policy(policy, "zip", tmp_path / "policy.zip")
