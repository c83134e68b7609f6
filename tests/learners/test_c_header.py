"""Headers in C: compiled by the system's compiler without a warning, they compute what the policy computes."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from tests.support.random_policies import CASES, PolicyCase

import gpuvec
from gpuvec.cli import main
from gpuvec.errors import ExportError
from gpuvec.learners.networks.deterministic import Critic
from gpuvec.learners.networks.mlp import SeparateMLP
from gpuvec.learners.policy_files.c_header import c_prefix
from gpuvec.learners.policy_files.export import PolicyProgram, export_policy
from gpuvec.learners.policy_files.trained_policy import TrainedPolicy

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "policies.md").read_text()
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
COMPILERS = {"c": ("cc", "-std=c99"), "c++": ("c++", "-std=c++11")}


class Body(torch.nn.Module):
    """Networks of a user for DDPG, with layers of PyTorch."""

    def __init__(self, activation: type[torch.nn.Module]) -> None:
        super().__init__()
        self.actor = torch.nn.Sequential(torch.nn.Linear(3, 16), activation(), torch.nn.Linear(16, 1))
        self.critic = Critic(3, 1, (16,))


ALL_CASES = {
    **{name: CASES[name] for name in ("discrete", "means", "ddpg", "components", "roles", "critic")},
    "deep": PolicyCase("gpuvec/CartPole-v1", settings={"hidden": (7, 33, 5), "normalize": True}),
    "shared": PolicyCase("gpuvec/CartPole-v1", settings={"shared": True, "hidden": (9,)}),
    # Bundled environments with action masks have convolutions, so that these have the masks of the test alone.
    "masked": CASES["discrete"],
    "masked components": CASES["components"],
    "relu": PolicyCase("gpuvec/Pendulum-v1", settings={"activation": "relu", "normalize": True}),
    "relu of a user": PolicyCase("gpuvec/CartPole-v1", body=lambda obs, action: SeparateMLP(4, 2, (9,), activation="relu")),
    "tanh of a user": PolicyCase("gpuvec/Pendulum-v1", "ddpg", body=lambda obs, action: Body(torch.nn.Tanh)),
}


def compile_program(language: str, source: Path, output: Path, *options: str) -> None:
    """Compiles a source file; skips the test where there is no compiler."""
    command, standard = COMPILERS[language]
    if shutil.which(command) is None:
        pytest.skip(f"there is no compiler {command}")
    words = [command, "-x", language, standard, *STRICT, *options, str(source), "-o", str(output), "-lm"]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def build(policy: TrainedPolicy, role: str, folder: Path, language: str) -> Any:
    """A library with the functions of the header, as C functions with the names `outputs`, `act` and `probabilities`."""
    export_policy(policy, "c", folder / "policy.h", role)
    mask, action = policy.spaces[role].has_masks, policy.spaces[role].action
    given, passed = ("const unsigned char *mask", "obs, mask") if mask else ("", "obs")
    parameters = ", ".join(filter(None, ["const float *obs", given]))
    is_box, is_single = isinstance(action, gym.spaces.Box), isinstance(action, gym.spaces.Discrete)
    act = f"*action = policy_act({passed});" if is_single else f"policy_act({passed}, action);"
    lines = [
        '#include "policy.h"', '#include "policy.h"', "#ifdef __cplusplus", 'extern "C" {', "#endif",
        "void outputs(const float *obs, float *out); void outputs(const float *obs, float *out) { policy_outputs(obs, out); }",
        f"void act({parameters}, {'float' if is_box else 'int'} *action);",
        f"void act({parameters}, {'float' if is_box else 'int'} *action) {{ {act} }}",
    ]  # fmt: skip
    if not is_box:
        signature = f"void probabilities({parameters}, float *out)"
        lines += [f"{signature};", f"{signature} {{ policy_probabilities({passed}, out); }}"]
    lines += ["#ifdef __cplusplus", "}", "#endif", ""]
    source = folder / "library.c"
    source.write_text("\n".join(lines))
    compile_program(language, source, folder / "library.so", "-shared", "-fPIC", "-O1")
    return ctypes.CDLL(str(folder / "library.so"))


def call(function: Any, inputs: tuple[Any, ...], k: int, size: int, dtype: Any) -> Any:
    """The array that a function of the library writes for row k of the inputs."""
    rows = [np.ascontiguousarray(x[k].numpy()) for x in inputs]
    out = np.empty(size, dtype)
    function(*(x.ctypes.data_as(ctypes.c_void_p) for x in (*rows, out)))
    return out


@pytest.mark.parametrize("language", COMPILERS)
@pytest.mark.parametrize("name", ALL_CASES)
def test_a_header_computes_what_the_policy_computes(name: str, language: str, tmp_path: Path) -> None:
    policy = TrainedPolicy(ALL_CASES[name].contents(), body=ALL_CASES[name].body)
    policy.spaces = {role: each._replace(has_masks="masked" in name) for role, each in policy.spaces.items()}
    for role in policy.roles:
        folder = tmp_path / role
        folder.mkdir()
        library, program = build(policy, role, folder, language), PolicyProgram(policy, role)
        inputs, space = program.random_inputs(50, np.random.default_rng(1)), policy.spaces[role].action
        assert not program.spaces.has_masks or not inputs[1].all()
        with torch.no_grad():
            expected = {k: x.numpy() for k, x in zip(program.output_names, program(*inputs), strict=True)}
        is_box = isinstance(space, gym.spaces.Box)
        names = {"mean": "outputs"} if is_box else {"logits": "outputs"}
        for output, function in names.items():
            if output in expected and not program.spaces.has_masks:
                for k, row in enumerate(expected[output]):
                    ours = call(getattr(library, function), inputs[:1], k, len(row), np.float32)
                    np.testing.assert_allclose(ours, row, rtol=2e-5, atol=2e-5 * np.abs(expected[output]).max())
        actions = expected["action"].reshape(50, -1)
        dtype = np.float32 if is_box else np.int32
        ours = np.array([call(library.act, inputs, k, actions.shape[1], dtype) for k in range(50)])
        if is_box:
            np.testing.assert_allclose(ours, actions, rtol=2e-5, atol=2e-5)
            assert ((ours >= space.low) & (ours <= space.high)).all()
        else:
            np.testing.assert_array_equal(ours, actions)
            masks = inputs[1].numpy() if program.spaces.has_masks else None
            reference = policy.probabilities(inputs[0].numpy(), masks, role=role)
            reference = np.concatenate(reference, 1) if isinstance(reference, tuple) else reference
            for k, row in enumerate(reference):
                ours = call(library.probabilities, inputs, k, len(row), np.float32)
                np.testing.assert_allclose(ours, row, rtol=2e-5, atol=1e-6)


def test_weights_have_all_digits(tmp_path: Path) -> None:
    policy = TrainedPolicy(CASES["discrete"].contents())
    text = export_policy(policy, "c", tmp_path / "p.h").read_text()
    numbers = re.search(r"p_weight0\[\d+\] = \{(.*?)\}", text, re.S)
    assert numbers is not None
    read = np.array([np.float32(word.strip().removesuffix("f")) for word in numbers[1].split(",")])
    weight = next(x for name, x in policy.networks["all"].state_dict().items() if name.endswith("actor.0.weight"))
    np.testing.assert_array_equal(read, weight.numpy().ravel())


def test_a_program_includes_several_policies(tmp_path: Path) -> None:
    for name in ("discrete", "ddpg", "means"):
        export_policy(TrainedPolicy(CASES[name].contents()), "c", tmp_path / f"{name}-v1.h")
    source = "".join(f'#include "{name}-v1.h"\n' for name in ("discrete", "ddpg", "means"))
    calls = "discrete_v1_act(x) + (ddpg_v1_act(x, y), means_v1_act(x, y), 0)"
    (tmp_path / "all.c").write_text(f"{source}int main(void) {{ float x[8] = {{0}}, y[8]; return {calls} > 1; }}\n")
    compile_program("c", tmp_path / "all.c", tmp_path / "all")
    assert subprocess.run([str(tmp_path / "all")], check=False).returncode == 0


@pytest.mark.parametrize("name", ["image", "bf16"])
def test_convolutions_are_refused(name: str, tmp_path: Path) -> None:
    policy = TrainedPolicy(CASES[name].contents())
    with pytest.raises(ExportError, match=r"for linear layers .* --format onnx"):
        export_policy(policy, "c", tmp_path / "p.h")
    assert not list(tmp_path.iterdir())


class Doubled(SeparateMLP):
    """A network of a user, whose parameters have the names of those of gpuvec."""

    def policy(self, obs: Any) -> Any:
        return 2.0 * super().policy(obs)


@pytest.mark.parametrize(
    ("case", "module"),
    [
        (PolicyCase("gpuvec/CartPole-v1", body=lambda obs, action: Doubled(4, 2, (16,))), "Doubled"),
        (PolicyCase("gpuvec/Pendulum-v1", "ddpg", body=lambda obs, action: Body(torch.nn.ELU)), "ELU"),
    ],
)
def test_networks_of_users_are_refused(case: PolicyCase, module: str, tmp_path: Path) -> None:
    policy = TrainedPolicy(case.contents(), body=case.body)
    with pytest.raises(ExportError, match=f"this policy has the module {module} "):
        export_policy(policy, "c", tmp_path / "p.h")


@pytest.mark.parametrize(("stem", "prefix"), [("cartpole", "cartpole"), ("CartPole-v1", "CartPole_v1"), ("a.b c", "a_b_c")])
def test_names_begin_with_the_name_of_the_file(stem: str, prefix: str) -> None:
    assert c_prefix(stem) == prefix


@pytest.mark.parametrize("stem", ["1st", "_x", "p\u00e9", "a+b", "a;b", ""])
def test_names_that_c_does_not_have_are_refused(stem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(stem))):
        c_prefix(stem)


def test_the_example_of_the_guide_compiles_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r"^```c\n(.*?)^```$", GUIDE, re.M | re.S)
    assert main(["export", "CartPole-v1", "--format", "c", "--to", str(tmp_path / "cartpole.h")]) == 0, capsys.readouterr()
    assert "exported" in capsys.readouterr().out
    (tmp_path / "cartpole.c").write_text(source)
    for language in COMPILERS:
        compile_program(language, tmp_path / "cartpole.c", tmp_path / "cartpole", "-O2")
        output = subprocess.run([str(tmp_path / "cartpole")], capture_output=True, text=True, check=True).stdout
        policy, obs = gpuvec.load_policy("CartPole-v1"), np.array([0.01, -0.2, 0.03, 0.4], np.float32)
        words = output.split()
        assert int(words[1].rstrip(",")) == policy.act(obs)
        np.testing.assert_allclose([float(words[3]), float(words[4])], policy.probabilities(obs), atol=1e-4)
