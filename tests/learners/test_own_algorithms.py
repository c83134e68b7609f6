"""Networks, algorithms, losses and metrics of users: run folders, the command line, trust, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

import gpuvec
from gpuvec.cli import main
from gpuvec.errors import CheckpointError, StateError
from gpuvec.learners.algorithms import ALGORITHMS, args_from_dict, args_from_json, args_to_dict, register_algorithm
from gpuvec.learners.config.training_config import A2CArgs, DDPGArgs, PPOArgs
from gpuvec.learners.evaluation.evaluate import evaluate
from gpuvec.learners.on_policy import OnPolicy
from gpuvec.learners.training import train

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "own_algorithms"
SIZES: dict[str, Any] = {"device": "cpu", "num_envs": 8, "num_steps": 8, "num_iterations": 2, "hidden": (8,)}
OPTIONS = ["--device", "cpu", "--num-envs", "8", "--num-steps", "8", "--num-minibatches", "2", "--episodes", "2"]
NETWORK = ["--network", "networks:Residual", "--network-args", "width=8", "blocks=2"]
ALGORITHM = ["--algorithm", "pqn:pqn"]


@pytest.fixture
def own_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A working folder with the modules of the examples, which are not imported; they end with the test."""
    for file in EXAMPLES.glob("*.py"):
        report = f"with open({str(tmp_path / 'imports')!r}, 'a') as file:\n    file.write('{file.stem} ')\n"
        (tmp_path / file.name).write_text(file.read_text() + report)
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(ALGORITHMS)
    yield tmp_path
    ALGORITHMS.clear()
    ALGORITHMS.update(before)
    for file in EXAMPLES.glob("*.py"):
        sys.modules.pop(file.stem, None)


def forget(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process one of another user, who has imported nothing and trained nothing."""
    for file in EXAMPLES.glob("*.py"):
        sys.modules.pop(file.stem, None)
    for name in [name for name in ALGORITHMS if ":" in name]:
        del ALGORITHMS[name]
    monkeypatch.setenv("XDG_CONFIG_HOME", tempfile.mkdtemp(dir=folder))  # another key
    (folder / "imports").unlink(missing_ok=True)


def the_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


class TestRunsOfTheCommandLine:
    @pytest.mark.parametrize("options", [NETWORK, ALGORITHM], ids=["network", "algorithm"])
    def test_each_command_reads_a_run_when_it_is_trusted_alone(
        self, own_modules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
    ) -> None:
        """Without trust nothing is imported, and nothing is written."""
        assert main(["train", *options, *OPTIONS, "--total-steps", "128"]) == 0
        module = options[1].partition(":")[0]
        run = str(the_run(own_modules))
        policy = str(own_modules / "policy.safetensors")
        commands = {
            "eval": ["eval", run, "--device", "cpu", "--episodes", "2"],
            "export": ["export", run, "--format", "safetensors", "--to", policy],
            "eval of a policy file": ["eval", policy, "--device", "cpu", "--episodes", "2"],
            "watch": ["watch", run, "--device", "cpu", "--steps", "3", "--to", "page.html", "--no-open"],
            "resume": ["resume", run, "--total-steps", "192", "--episodes", "2"],
        }
        for name, command in commands.items():
            forget(own_modules, monkeypatch)
            capsys.readouterr()
            assert main(command) == 1, name
            error = capsys.readouterr().err
            assert f"the module '{module}', which is not imported" in error, name
            assert not (own_modules / "imports").exists(), name
            assert main([*command, "--trust"]) == 0, capsys.readouterr().err
            assert (own_modules / "imports").read_text() == f"{module} ", name
        for name in ("runs", "plot", "compare"):  # they read numbers alone
            forget(own_modules, monkeypatch)
            arguments = [str(own_modules / "runs")] if name == "runs" else [run]
            assert main([name, *arguments]) == 0, capsys.readouterr().err
            assert not (own_modules / "imports").exists()

    def test_python_reads_a_run_after_the_import(self, own_modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert main(["train", *ALGORITHM, *OPTIONS, "--total-steps", "128"]) == 0
        assert main(["train", *NETWORK, *OPTIONS, "--total-steps", "128", "--runs", "others"]) == 0
        runs = {"pqn": the_run(own_modules), "networks": next((own_modules / "others").iterdir())}
        forget(own_modules, monkeypatch)
        for module, run in runs.items():
            with pytest.raises(CheckpointError, match=f"module '{module}', which is not imported"):
                gpuvec.load_policy(run)
            assert not (own_modules / "imports").exists()
            __import__(module)
            assert gpuvec.load_policy(run).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
            (own_modules / "imports").unlink()

    def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(self, own_modules: Path) -> None:
        import networks
        import pqn

        trainings: dict[str, tuple[Any, Any]] = {
            "network": (PPOArgs(**{**SIZES, "num_iterations": 4}), networks.Residual),
            "algorithm": (pqn.PQNArgs(**{**SIZES, "num_iterations": 4}), None),
        }
        for name, (args, body) in trainings.items():
            run, whole = own_modules / name, train(args, body=body)
            train(args, lambda learner, metrics: metrics["iteration"] == 2, body=body, run_folder=run)
            assert main(["resume", str(run), "--episodes", "2"]) == 0
            resumed = torch.load(run / "checkpoint-4.pt", weights_only=True)
            for parameter, value in whole.network.state_dict().items():
                assert torch.equal(resumed["policies"]["all"]["network"][parameter], value), parameter

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--network", "nowhere:Net"], "--network 'nowhere:Net': there is no module 'nowhere'"),
            (["--network", "networks.parts:Net"], "there is no module 'networks.parts'"),
            (["--network", "networks:Missing"], "network networks:Missing is not a class of torch.nn.Module"),
            (["--network", "json:dumps"], "network json:dumps is not a class of torch.nn.Module"),
            (["--network", "torch.nn:Linear"], "must fit Box"),
            ([*NETWORK[:3], "widht=8"], "unexpected keyword argument 'widht'"),
            ([*NETWORK, "--env", "gpuvec/Pendulum-v1"], "must fit Box"),
            ([*NETWORK, "--env", "gpuvec/Breakout-v0"], "Residual"),
            ([*NETWORK, "--population", "2"], "network=None only"),
            (["--algorithm", "nowhere:algo"], "--algorithm 'nowhere:algo': there is no module 'nowhere'"),
            (["--algorithm", "pqn:other"], "algorithm must be one of"),
            (["--algorithm", "json:dumps"], "algorithm must be one of"),
        ],
        ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
    )
    def test_names_that_lead_nowhere_are_refused(
        self, own_modules: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
    ) -> None:
        assert main(["train", *options, *OPTIONS, "--total-steps", "128"]) == 1
        error = capsys.readouterr().err
        assert message in error
        # Compiling says so after a second.
        assert [line for line in error.splitlines() if not line.startswith("compiling ")] == error.splitlines()[-1:]
        assert not (own_modules / "runs").exists()


class Net(torch.nn.Module):
    """One layer, which policy and value share."""

    def __init__(self, observations: Any, actions: Any, scale: float = 1.0, sizes: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(observations.shape[0], int(actions.n) + 1)
        self.scale = scale

    def policy(self, obs: Any) -> Any:
        return self.scale * self.layer(obs)[..., 1:]

    def value(self, obs: Any) -> Any:
        return self.layer(obs)[..., 0]


def make_net(observations: Any, actions: Any) -> Net:
    return Net(observations, actions)


class TestNetworksOfPython:
    def test_a_class_with_arguments_is_named_and_found(self, tmp_path: Path) -> None:
        body = partial(Net, scale=0.5, sizes=(2, 3))
        result = train(PPOArgs(**SIZES), body=body, run_folder=tmp_path / "run")
        assert (result.args.network, result.args.network_args) == (f"{__name__}:Net", {"scale": 0.5, "sizes": (2, 3)})
        policy = gpuvec.load_policy(tmp_path / "run")
        assert policy.networks["all"].body.scale == 0.5
        named = train(PPOArgs(**SIZES, network=f"{__name__}:Net", network_args={"scale": 0.5, "sizes": (2, 3)}))
        for name, value in result.network.state_dict().items():
            assert torch.equal(named.network.state_dict()[name], value)

    @pytest.mark.parametrize("kind", ["local", "function", "lambda", "tensor"])
    def test_what_has_no_name_needs_the_body(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
        class Local(Net):
            pass

        bodies: dict[str, Any] = {
            "local": Local, "function": make_net, "lambda": lambda observations, actions: Net(observations, actions, 2.0),
            "tensor": partial(Net, scale=torch.tensor(2.0)),
        }  # fmt: skip
        body, run = bodies[kind], tmp_path / "run"
        train(PPOArgs(**SIZES), body=body, run_folder=run)
        for command in (["eval", str(run), "--device", "cpu"], ["resume", str(run), "--total-steps", "256"]):
            assert main([*command, "--trust"]) == 1
            assert "give it in Python: load_policy(..., body=...)" in capsys.readouterr().err
        assert gpuvec.load_policy(run, body=body).act([0.0] * 4) in (0, 1)
        longer = PPOArgs(**{**SIZES, "num_iterations": 3})
        assert len(train(longer, body=body, run_folder=run).history) == 1

    def test_settings_that_name_no_class_are_refused(self) -> None:
        for network in ("Residual", "module:", ":Class", ""):
            with pytest.raises(ValueError, match="network must be module:Class or None"):
                PPOArgs(network=network)
        with pytest.raises(ValueError, match="network_args must be empty without network"):
            PPOArgs(network_args={"width": 8})
        with pytest.raises(ValueError, match="network_args must be a dict"):
            PPOArgs(network="module:Class", network_args={"width": [object()]})

    def test_two_networks_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"network='other:Net', and body is"):
            train(PPOArgs(**SIZES, network="other:Net"), body=Net)

    def test_a_file_calls_no_function_of_an_imported_module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoint = train(PPOArgs(**SIZES)).checkpoint
        calls = []
        module = types.ModuleType("innocent")
        module.function = lambda *args, **kwargs: calls.append(args)  # type: ignore[attr-defined]
        module.__getattr__ = calls.append  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, "innocent", module)
        for name in ("innocent:function", "innocent:lazy", "innocent:function.__call__", "os:system"):
            checkpoint["args"]["all"]["network"] = name
            torch.save(checkpoint, tmp_path / "checkpoint-2.pt")
            with pytest.raises(StateError, match=r"is not a class of torch\.nn\.Module"):
                gpuvec.load_policy(tmp_path)
        assert not calls


@dataclass(frozen=True)
class OwnArgs(PPOArgs):
    """Settings of an algorithm of a user."""

    temperature: float = 1.0


class TestRegisteredAlgorithms:
    @pytest.fixture(autouse=True)
    def registry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpuvec.learners.algorithms.ALGORITHMS", dict(ALGORITHMS))

    def test_a_subclass_of_ppo_has_a_name_and_its_own_settings(self) -> None:
        assert args_to_dict(OwnArgs())["algorithm"] == "ppo"
        assert register_algorithm("own", OwnArgs, "gpuvec.learners.ppo:PPO") == f"{__name__}:own"
        values = args_to_dict(OwnArgs(**SIZES, temperature=2.0))
        assert values["algorithm"] == f"{__name__}:own"
        assert args_from_dict(values) == OwnArgs(**SIZES, temperature=2.0)
        checkpoint = train(OwnArgs(**SIZES, temperature=2.0)).checkpoint
        assert checkpoint["args"]["all"]["temperature"] == 2.0
        with pytest.raises(ValueError, match="temperature must be a number"):
            args_from_dict({**values, "temperature": "hot"})
        with pytest.raises(ValueError, match="temperature must be a number"):
            train(OwnArgs(**SIZES, temperature="hot"))

    def test_what_cannot_be_registered(self) -> None:
        @dataclass(frozen=True)
        class Lists(PPOArgs):
            names: list = dataclasses.field(default_factory=list)

        class NoDataclass(PPOArgs):
            pass

        for name, args_class, error, message in (
            ("my algorithm", OwnArgs, ValueError, "must be a Python identifier"),
            ("own", PPOArgs, ValueError, "PPOArgs are the settings of ppo"),
            ("own", int, TypeError, "must be a frozen dataclass"),
            ("own", NoDataclass, TypeError, "must be a dataclass itself"),
        ):
            with pytest.raises(error, match=message):
                register_algorithm(name, args_class, OnPolicy)
        Lists.__annotations__["names"] = list
        with pytest.raises(TypeError, match="a setting is a number, text, None"):
            register_algorithm("own", Lists, OnPolicy)

    def test_settings_in_containers_are_checked_and_return_from_json_as_they_were(self) -> None:
        @dataclass(frozen=True)
        class ContainerArgs(PPOArgs):
            layers: tuple[tuple[int, ...], ...] = ()
            tables: dict[str, float | tuple[int, ...]] = dataclasses.field(default_factory=dict)

        register_algorithm("containers", ContainerArgs, OnPolicy)
        args = ContainerArgs(layers=((1, 2), ()), tables={"a": (1, 2), "b": 1.0})
        assert args_from_json(json.loads(json.dumps(args_to_dict(args)))) == args
        for wrong in ({"a": float("inf")}, {"a": 1e39}, {"a": float("nan")}):
            with pytest.raises(ValueError, match=r"tables must be .* finite"):
                args_to_dict(dataclasses.replace(args, tables=wrong))
            with pytest.raises(ValueError, match=r"network_args must be .* finite"):
                PPOArgs(network="networks:Residual", network_args=wrong)

    def test_pqn_learns_cartpole(self, own_modules: Path) -> None:
        import pqn

        result = train(pqn.PQNArgs(device="cpu", seed=1))
        # Random actions reach 22; three seeds reached 500.
        assert evaluate(result.network, "gpuvec/CartPole-v1", device="cpu", episodes=50).mean() > 150
        assert {"q_loss", "q_value", "grad_norm"} <= set(result.history[-1])


def rough(network: Any, samples: Any, args: Any, own_loss: Any) -> Any:
    """Adds a penalty on the logits."""
    size = network.policy(samples.obs).logits.square().mean()
    return own_loss + 0.1 * size, {"size": size}


class TestOwnLosses:
    @pytest.mark.parametrize("args_class", [PPOArgs, A2CArgs])
    def test_the_loss_of_the_algorithm_returned_unchanged_gives_its_bits(self, device: str, args_class: Any) -> None:
        args = args_class(**{**SIZES, "device": device}, **({"fused": False} if args_class is PPOArgs else {}))
        plain, same = train(args), train(args, loss=lambda network, samples, args, own_loss: own_loss)
        for name, value in plain.network.state_dict().items():
            assert torch.equal(same.network.state_dict()[name], value)
        assert plain.history[-1].keys() == same.history[-1].keys()

    @pytest.mark.parametrize("args_class", [PPOArgs, A2CArgs])
    def test_an_added_term_is_learned_and_logged(self, device: str, args_class: Any, tmp_path: Path) -> None:
        args = args_class(**{**SIZES, "device": device, "num_iterations": 20}, learning_rate=1e-2)
        metrics = {"largest": lambda network, samples: samples.advantage.amax()}
        plain = train(args, metrics={"size": lambda network, samples: network.policy(samples.obs).logits.square().mean()})
        result = train(args, loss=lambda *x: (rough(*x)[0] + 10 * rough(*x)[1]["size"], rough(*x)[1]), metrics=metrics,
                       run_folder=tmp_path / "run")  # fmt: skip
        assert result.history[-1]["size"] < 0.8 * plain.history[-1]["size"]
        line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        assert line["size"] == result.history[-1]["size"]
        assert line["largest"] == result.history[-1]["largest"]
        assert list(json.loads((tmp_path / "run" / "args.json").read_text())["metrics"]) == ["largest"]

    def test_a_loss_may_replace_that_of_the_algorithm(self) -> None:
        def only_policy(network: Any, samples: Any, args: Any, own_loss: Any) -> Any:
            return -network.policy(samples.obs).log_prob_and_entropy(samples.action)[1].mean()

        args = PPOArgs(**SIZES, max_grad_norm=1e9)
        result = train(args, loss=only_policy)
        initial = OnPolicy.make_network(args, *map(gpuvec_spaces().get, ("observation", "action"))).state_dict()
        trained = result.network.state_dict()
        for name, value in initial.items():
            assert torch.equal(trained[name], value) == name.startswith("body.critic"), name

    def test_metrics_are_of_all_samples_after_the_update(self) -> None:
        metrics = {
            "bias": lambda network, samples: network.body.actor[0].bias.sum(),
            "count": lambda network, samples: samples.advantage.new_full((), len(samples.advantage)),
        }
        result = train(PPOArgs(**SIZES), metrics=metrics)
        assert result.history[-1]["count"] == 64
        assert result.history[-1]["bias"] == pytest.approx(result.network.body.actor[0].bias.sum().item())

    def test_the_fused_kernels_are_refused(self) -> None:
        with pytest.raises(ValueError, match="loss and metrics of your own need PyTorch operations"):
            train(PPOArgs(**SIZES, fused=True), loss=rough, metrics={"x": lambda network, samples: samples.value.sum()})

    @pytest.mark.parametrize(
        ("loss", "message"),
        [
            (lambda *x: x[3].detach(), "a tensor without a gradient"),
            (lambda *x: x[3].expand(2), r"must return a tensor of shape \(\)"),
            (lambda *x: None, "got NoneType"),
            (lambda *x: (x[3], [1]), r"\{name: tensor\}"),
            (lambda *x: (x[3], {"entropy": x[3]}), "a metric 'entropy'"),
            (lambda *x: (x[3], {"a/b": x[3]}), "Python identifier"),
            (lambda *x: (x[3], {"size": 1.0}), r"the metric 'size' .* must be a tensor of shape \(\), got float"),
        ],
    )
    def test_what_a_loss_must_return(self, loss: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            train(PPOArgs(**SIZES), loss=loss)

    @pytest.mark.parametrize(
        ("returned", "message"),
        [
            (lambda loss: (loss, {}), r"the metrics \[\], and \['size'\] before"),
            (lambda loss: (loss, {"size": loss, "more": loss}), r"the metrics \['size', 'more'\], and \['size'\] before"),
            (lambda loss: (loss, {"size": loss, 1: loss}), r"the metrics \['size', 1\], and \['size'\] before"),
            (lambda loss: (loss.expand(2), {"size": loss}), r"must return a tensor of shape \(\)"),
            (lambda loss: (loss.detach(), {"size": loss}), "a tensor without a gradient"),
            (lambda loss: (loss, {"size": loss.expand(2)}), r"the metric 'size' .* must be a tensor of shape \(\)"),
        ],
    )
    def test_what_a_loss_must_return_after_its_first_call(self, returned: Any, message: str) -> None:
        calls = []

        def loss(network: Any, samples: Any, args: Any, own_loss: Any) -> Any:
            calls.append(samples)
            return (own_loss, {"size": own_loss}) if len(calls) < 3 else returned(own_loss)

        with pytest.raises(ValueError, match=message):
            train(PPOArgs(**SIZES), loss=loss)

    @pytest.mark.parametrize("args_class", [PPOArgs, A2CArgs])
    def test_samples_of_a_loss_have_one_leading_dimension_in_each_call(self, args_class: Any) -> None:
        shapes = []

        def loss(network: Any, samples: Any, args: Any, own_loss: Any) -> Any:
            shapes.append((samples.advantage.dim(), samples.obs.dim()))
            return own_loss

        train(args_class(**SIZES), loss=loss)
        assert set(shapes) == {(1, 2)}
        assert len(shapes) > 1

    def test_other_algorithms_take_no_loss(self) -> None:
        with pytest.raises(ValueError, match="are for algorithms on OnPolicy, as ppo and a2c, and not for ddpg"):
            train(DDPGArgs(env="gpuvec/Pendulum-v1", device="cpu"), loss=rough)
        with pytest.raises(ValueError, match=r"the metric 'x' must be a tensor of shape \(\)"):
            train(PPOArgs(**SIZES), metrics={"x": lambda network, samples: samples.value})

    def test_a_run_continues_in_python_alone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run, longer = tmp_path / "run", PPOArgs(**{**SIZES, "num_iterations": 3})
        train(PPOArgs(**SIZES), loss=rough, run_folder=run)
        assert main(["resume", str(run), "--total-steps", "192"]) == 1
        assert f"was trained with loss={__name__}.rough, an object of Python" in capsys.readouterr().err
        with pytest.raises(StateError, match=r"was trained with loss=.*rough, and this training has None"):
            train(longer, run_folder=run)
        assert len(train(longer, loss=rough, run_folder=run).history) == 1
        assert gpuvec.load_policy(run).act([0.0] * 4) in (0, 1)


def gpuvec_spaces() -> dict[str, Any]:
    from gpuvec.learners.environments import find_agent_spaces

    spaces = find_agent_spaces("gpuvec/CartPole-v1", {}, "cpu")
    return {"observation": spaces.observation, "action": spaces.action}


def test_the_page_runs(tmp_path: Path) -> None:
    """Its blocks of Python, one after the other as a script, and the commands that it shows name what exists."""
    page = (EXAMPLES.parents[1] / "docs" / "guides" / "own_algorithms.md").read_text()
    blocks = [part.partition("```")[0].partition("\n")[2] for part in page.split("```{testcode}")[1:]]
    program = "\n".join(blocks)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("--algorithm pqn:pqn", "--network networks:Residual --network-args width=64 blocks=2", "loss="):
        assert command in page
