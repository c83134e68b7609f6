"""Damaged or hostile run folders: one line names the error, no code is executed, and no file is written."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")

from gpuvec.cli import main
from gpuvec.errors import CheckpointError, NonFiniteError, OutOfMemoryError, RunInUseError, RunWriteError
from gpuvec.learners.algorithms import args_class
from gpuvec.learners.evaluation.evaluate import evaluate, load_policy
from gpuvec.learners.runs.checkpoint import list_checkpoints, load, save
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.run_writer import RunWriter
from gpuvec.learners.training import train

SMALL = ["--device", "cpu", "--num-envs", "4", "--num-steps", "8", "--episodes", "2", "--hidden", "8"]
REPLAY = [
    "--algorithm",
    "ddpg",
    "--env",
    "gpuvec/Pendulum-v1",
    "--buffer-size",
    "64",
    "--batch-size",
    "8",
    "--learning-starts",
    "8",
]
MORE_STEPS = ["--total-steps", "320", "--episodes", "1"]


def make_run(runs: Path, *options: str) -> Path:
    """Returns the folder of a run of two iterations, with a checkpoint of each."""
    arguments = ["train", *SMALL, *options, "--total-steps", "64", "--checkpoint-every", "1", "--runs", str(runs)]
    assert main(arguments) == 0
    (folder,) = runs.iterdir()
    return folder


@pytest.fixture(scope="module")
def ppo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("ppo"), "--normalize")


@pytest.fixture(scope="module")
def ddpg_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("ddpg"), *REPLAY)


def copy_run(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run", symlinks=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def nested_dict(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"deeper": value}
    return value


def error_lines(printed: str) -> list[str]:
    """Returns the lines of standard error without progress lines, which depend on how busy the machine is."""
    lines = [line for line in printed.splitlines() if not line.endswith(" ...")]
    assert all(line.startswith("gpuvec: ") for line in lines), printed
    return lines


Change = Callable[[dict[str, Any]], Any]


def set_value(path: str, value: Any) -> Change:
    """Writes `value` at a path of keys such as "args.all.hidden"."""

    def change(checkpoint: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for name in parents:
            checkpoint = checkpoint[name]
        checkpoint[last] = value

    return change


def delete_key(path: str) -> Change:
    def change(checkpoint: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for name in parents:
            checkpoint = checkpoint[name]
        del checkpoint[last]

    return change


def set_weight(value: float) -> Change:
    def change(checkpoint: dict[str, Any]) -> None:
        network = checkpoint["policies"]["all"]["network"]
        network["body.actor.0.weight"][0, 0] = value

    return change


def expand_weight(checkpoint: dict[str, Any]) -> None:
    network = checkpoint["policies"]["all"]["network"]
    network["body.actor.0.weight"] = torch.zeros(1).expand(10**6, 10**6)


# {name: (what is done to a whole checkpoint, words of the message)}
SPARSE = ("body", "cannot be read")  # torch reads it, or before 2.12 refuses to
DAMAGES: dict[str, tuple[Change, str]] = {
    "not a mapping": (lambda c: [1, 2, 3], "list"),
    "a mapping of nothing": (lambda c: {}, "lacks"),
    "keys that are no strings": (lambda c: {**c, 7: 1}, "7"),
    "an unknown key": (set_value("surprise", 1), "surprise"),
    "no policies": (delete_key("policies"), "policies"),
    "policies of another type": (set_value("policies", 3), "policies"),
    "no policy of a role that learned": (set_value("policies", {}), "policies"),
    "no network": (delete_key("policies.all.network"), "network"),
    "no iteration": (delete_key("iteration"), "iteration"),
    "an iteration of another type": (set_value("iteration", "7"), "iteration"),
    "an iteration below zero": (set_value("iteration", -1), "iteration"),
    "seconds that are no number": (set_value("seconds", float("nan")), "seconds"),
    "no generators": (delete_key("generators"), "generators"),
    "generators of other roles": (set_value("generators", {"runner": torch.zeros(5056, dtype=torch.uint8)}), "generators"),
    "a generator state of another type": (set_value("generators.all", torch.zeros(5056)), "generators"),
    "a generator state of another size": (set_value("generators.all", torch.zeros(7, dtype=torch.uint8)), "generators"),
    "a generator state that is junk": (set_value("generators.all", torch.full((5056,), 255, dtype=torch.uint8)), "generators"),
    "a format of another type": (set_value("format", "3"), "format"),
    "args that are a list": (set_value("args", [1]), "args"),
    "no args": (set_value("args", {}), "args"),
    "args of a role that are a number": (set_value("args.all", 3), "args"),
    "no algorithm": (delete_key("args.all.algorithm"), "algorithm"),
    "an algorithm that is a list": (set_value("args.all.algorithm", ["ppo"]), "of the algorithm ['ppo']"),
    "no environment": (delete_key("args.all.env"), "env"),
    "an unknown setting": (set_value("args.all.colour", 1), "colour"),
    "a setting of another type": (set_value("args.all.gamma", "high"), "gamma"),
    "sizes that are no tuple": (set_value("args.all.hidden", 64), "hidden"),
    "steps that are text": (set_value("args.all.num_steps", "many"), "num_steps"),
    "a billion of hidden units": (set_value("args.all.hidden", (10**9, 10**9)), "hidden"),
    "more hidden units than the file holds": (set_value("args.all.hidden", (60_000, 60_000)), "hidden"),
    "a million threads": (set_value("args.all.threads", 10**6), "threads"),
    "a billion environments": (set_value("args.all.num_envs", 10**9), "num_envs"),
    "a parameter of make_vec's own": (set_value("args.all.params", {"buffers": 10**7}), "buffers"),
    "a parameter that names an environment": (set_value("args.all.params", {"env": "antigravity:ENV"}), "env"),
    "a parameter that is a list": (set_value("args.all.params", {"gravity": [1.0]}), "params"),
    "an environment that is not gpuvec's": (set_value("args.all.env", "CartPole-v1"), "CartPole-v1"),
    "an environment that is a number": (set_value("args.all.env", 5), "env"),
    "an unknown environment": (set_value("args.all.env", "gpuvec/Nothing-v0"), "Nothing"),
    "a module that is not imported": (set_value("args.all.env", "antigravity:gpuvec/CartPole-v1"), "--trust"),
    "a weight that is not finite": (set_weight(float("nan")), "not finite"),
    "a weight that is infinite": (set_weight(float("inf")), "not finite"),
    "a tensor larger than its file": (expand_weight, "body.actor.0.weight"),
    "a sparse tensor": (set_value("policies.all.network", {"body": torch.eye(3).to_sparse()}), SPARSE),
    "text in place of a tensor": (set_value("policies.all.num_rollouts", "three"), "num_rollouts"),
    "a tensor in place of a mapping": (set_value("policies.all.network", torch.zeros(3)), "network"),
    "very deep nesting": (set_value("policies.all.network", nested_dict(1_000)), "deep"),
    "an env that is a list": (set_value("env", [1, 2]), "env"),
}


# The previous checkpoint has the same settings, so that the error does not suggest it.
BEYOND_THE_FILE = {
    "a billion of hidden units", "more hidden units than the file holds", "a parameter of make_vec's own",
    "an environment that is not gpuvec's", "an unknown environment",
    "a module that is not imported",
}  # fmt: skip


@pytest.fixture(params=["eval", "resume"])
def refusal_of(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that runs the command on a folder, and gives the one line with which the command refuses it."""

    def run(folder: Path, *options: str, only: str = "") -> str:
        if only and request.param != only:
            pytest.skip(f"{request.param} does not read this")
        before = contents(folder)
        modules = set(sys.modules)
        capsys.readouterr()
        more = ["--device", "cpu"] if request.param == "eval" else []
        status = main([request.param, str(folder), *(MORE_STEPS if request.param == "resume" else []), *more, *options])
        printed = capsys.readouterr()
        assert status == 1, printed.out
        assert contents(folder) == before
        assert "antigravity" not in set(sys.modules) - modules
        (line,) = error_lines(printed.err)
        assert len(line) < 1000
        return line

    return run


def save_nested(checkpoint: Any, path: Path) -> None:
    """Calls torch.save with a higher recursion limit, which its pickler needs for deep nesting."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        torch.save(checkpoint, path)
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_in_one_line(
    damage: str, ppo_run: Path, tmp_path: Path, refusal_of: Callable[..., str]
) -> None:
    change, words = DAMAGES[damage]
    folder = copy_run(ppo_run, tmp_path)
    newest = folder / "checkpoint-2.pt"
    checkpoint = torch.load(newest, weights_only=True)
    changed = change(checkpoint)
    save_nested(checkpoint if changed is None else changed, newest)
    line = refusal_of(folder)
    assert any(word in line for word in ([words] if isinstance(words, str) else words))
    assert (f"{folder}/checkpoint-1.pt" in line) == (damage not in BEYOND_THE_FILE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_value("args.all.buffer_size", 10**12), "buffer_size"),
        (set_value("args.all.batch_size", 10**12), "batch_size"),
        (set_value("policies.all.replay.position", torch.tensor(10**9)), "position"),
        (set_value("policies.all.replay.size", torch.tensor(-5)), "size"),
        (set_value("policies.all.replay.size", torch.tensor([5])), "size"),
    ],
)
def test_a_damaged_replay_is_refused(
    change: Change, words: str, ddpg_run: Path, tmp_path: Path, refusal_of: Callable[..., str]
) -> None:
    folder = copy_run(ddpg_run, tmp_path)
    checkpoint = torch.load(folder / "checkpoint-2.pt", weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, folder / "checkpoint-2.pt")
    assert words in refusal_of(folder)


@pytest.mark.parametrize("kind", ["empty", "text", "cut", "plain pickle", "compressed", "folder", "pipe"])
def test_a_file_that_is_no_checkpoint_is_refused(
    kind: str, ppo_run: Path, tmp_path: Path, refusal_of: Callable[..., str]
) -> None:
    import zipfile

    folder = copy_run(ppo_run, tmp_path)
    newest = folder / "checkpoint-2.pt"
    whole = newest.read_bytes()
    newest.unlink()
    if kind == "folder":
        newest.mkdir()
    elif kind == "pipe":
        os.mkfifo(newest)
    elif kind == "compressed":
        with zipfile.ZipFile(newest, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", b"\0" * 10**7)
    else:
        newest.write_bytes(
            {"empty": b"", "text": b"nothing of the sort", "cut": whole[:1000]}.get(kind) or pickle.dumps({"a": 1})
        )
    line = refusal_of(folder)
    assert "checkpoint-2.pt" in line
    assert f"{folder}/checkpoint-1.pt" in line


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("versions.json", "", "versions.json"),
        ("versions.json", "[" * 100_000, "versions.json"),
        ("versions.json", "[1, 2]", "versions.json"),
        ("versions.json", '{"numpy": 7}', "versions.json"),
        ("metrics.jsonl", '{"a":' * 100_000 + "\n", "metrics.jsonl"),
        ("metrics.jsonl", '[1]\n{"iteration": 2}\n', "metrics.jsonl"),
        ("metrics.jsonl", '{"steps": 1}\n{"iteration": 2}\n', "metrics.jsonl"),
        ("metrics.jsonl", '{"iteration": "one"}\n', "metrics.jsonl"),
        ("metrics.jsonl", '{"iteration": 1}\nnonsense\n{"iteration": 2}\n', "metrics.jsonl"),
        ("metrics.jsonl", b"\xff\xfe\n", "metrics.jsonl"),
    ],
)
def test_damaged_records_of_a_run_are_refused(
    name: str, text: str | bytes, words: str, ppo_run: Path, tmp_path: Path, refusal_of: Callable[..., str]
) -> None:
    folder = copy_run(ppo_run, tmp_path)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert words in refusal_of(folder, only="resume")


class TestLinks:
    @pytest.mark.parametrize(
        "name", ["metrics.part", "metrics.jsonl", "checkpoint-10.part", "checkpoint-10.pt", "lock", "args.json", "result.json"]
    )
    def test_no_file_outside_is_written_through_a_link(
        self, name: str, ppo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = copy_run(ppo_run, tmp_path)
        victim = tmp_path / "victim"
        victim.write_text("precious")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(victim)
        status = main(["resume", str(folder), *MORE_STEPS])
        assert victim.read_text() == "precious"
        printed = capsys.readouterr()
        assert status in (0, 1), printed.err
        assert len(error_lines(printed.err)) == status

    def test_a_hard_link_is_not_written_to(self, ppo_run: Path, tmp_path: Path) -> None:
        folder = copy_run(ppo_run, tmp_path)
        victim = tmp_path / "victim"
        os.link(folder / "metrics.jsonl", victim)
        before = victim.read_bytes()
        assert main(["resume", str(folder), *MORE_STEPS]) == 0
        assert victim.read_bytes() == before
        assert len((folder / "metrics.jsonl").read_bytes()) > len(before)

    def test_a_link_for_event_files_is_refused(self, tmp_path: Path, ppo_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("tensorboard")
        folder = copy_run(ppo_run, tmp_path)
        (tmp_path / "elsewhere").mkdir()
        (folder / "tensorboard").symlink_to(tmp_path / "elsewhere")
        assert main(["resume", str(folder), *MORE_STEPS, "--log", "tensorboard"]) == 1
        assert "tensorboard" in capsys.readouterr().err
        assert not list((tmp_path / "elsewhere").iterdir())

    def test_a_link_to_a_run_folder_is_the_folder(self, ppo_run: Path, tmp_path: Path) -> None:
        folder = copy_run(ppo_run, tmp_path)
        (tmp_path / "latest").symlink_to(folder)
        assert main(["resume", str(tmp_path / "latest"), *MORE_STEPS]) == 0
        assert load(folder)["iteration"] == 10


class TestModulesThatACheckpointNames:
    @pytest.fixture
    def folder(self, ppo_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Returns a run whose checkpoint names a module that creates a file when it is imported."""
        (tmp_path / "module_of_a_run.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "module_of_a_run", raising=False)
        folder = copy_run(ppo_run, tmp_path)
        checkpoint = torch.load(folder / "checkpoint-2.pt", weights_only=True)
        checkpoint["args"]["all"]["env"] = "module_of_a_run:gpuvec/CartPole-v1"
        torch.save(checkpoint, folder / "checkpoint-2.pt")
        return folder

    def test_modules_are_imported_only_when_trusted(
        self, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["eval", str(folder), "--device", "cpu"]) == 1
        assert "module_of_a_run" in capsys.readouterr().err
        assert not (tmp_path / "imported").exists()
        assert main(["eval", str(folder), "--device", "cpu", "--episodes", "2", "--trust"]) == 0
        assert (tmp_path / "imported").exists()
        assert main(["resume", str(folder), *MORE_STEPS, "--trust"]) == 0
        sys.modules.pop("module_of_a_run")

    def test_modules_that_are_already_imported_are_trusted(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="module_of_a_run"):
            load_policy(load(folder), "cpu")
        assert not (tmp_path / "imported").exists()
        importlib.import_module("module_of_a_run")
        load_policy(load(folder), "cpu")
        sys.modules.pop("module_of_a_run")


def test_a_network_that_is_not_finite_is_not_evaluated(ppo_run: Path) -> None:
    args, network = load_policy(load(ppo_run), "cpu")
    assert evaluate(network, args.env, episodes=2, device="cpu").isfinite().all()
    with torch.no_grad():
        network.body.actor[0].weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"body\.actor\.0\.weight of the network is not finite"):
        evaluate(network, args.env, episodes=2, device="cpu")


class TestFullDisks:
    def test_training_ends_with_one_line_and_no_part(self, ppo_run: Path, tmp_path: Path) -> None:
        folder = copy_run(ppo_run, tmp_path)
        limit = (folder / "checkpoint-2.pt").stat().st_size - 1000
        code = (
            f"import resource, sys\nfrom gpuvec.cli import main\nimport torch\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\nsys.exit(main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", code, "resume", str(folder), *MORE_STEPS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        (line,) = error_lines(done.stderr)
        assert "checkpoint-10.pt cannot be written" in line
        assert "File too large" in line
        assert "checkpoint-2.pt" in line
        assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-1.pt", "checkpoint-2.pt"]
        assert not [path.name for path in folder.iterdir() if "part" in path.name]

    def test_a_run_that_cannot_begin_leaves_no_folder(self, tmp_path: Path) -> None:
        import resource

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        try:
            with pytest.raises(RunWriteError, match=r"versions\.json cannot be written: File too large"):
                RunWriter.new(tmp_path / "runs", "ppo", {"env": "a/B-v0", "seed": 1})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not list((tmp_path / "runs").iterdir())


class TestLock:
    def test_a_second_process_ends_with_one_line(
        self, ppo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = copy_run(ppo_run, tmp_path)
        before = contents(folder)
        with RunFolder(folder) as first:
            first.lock()
            assert main(["resume", str(folder), *MORE_STEPS]) == 1
            (line,) = error_lines(capsys.readouterr().err)
            assert f"{folder} is in use" in line
            assert contents(folder) == before
            with RunFolder(folder) as second, pytest.raises(RunInUseError):
                second.lock()
        assert main(["resume", str(folder), *MORE_STEPS]) == 0

    def test_a_run_is_locked_until_it_is_closed(self, tmp_path: Path) -> None:
        run = RunWriter.new(tmp_path, "ppo", {"env": "a/B-v0", "seed": 1})
        with RunFolder(run.path) as other:
            assert other.is_locked()
            run.close()
            assert not other.is_locked()

    def test_parts_of_a_run_that_was_killed_are_removed(self, ppo_run: Path, tmp_path: Path) -> None:
        folder = copy_run(ppo_run, tmp_path)
        (folder / ".checkpoint-9.pt.0123456789abcdef.part").write_bytes(b"half")
        (folder / "mine.part").write_bytes(b"not ours")
        with RunFolder(folder) as opened:
            opened.lock()
        assert [path.name for path in folder.iterdir() if path.suffix == ".part"] == ["mine.part"]


def test_a_checkpoint_is_not_saved_into_a_folder_that_is_missing(ppo_run: Path, tmp_path: Path) -> None:
    checkpoint = load(ppo_run)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing: .* create it first"):
        save(tmp_path / "missing", checkpoint)
    assert save(tmp_path, checkpoint) == tmp_path / "checkpoint-2.pt"
    assert load(tmp_path)["iteration"] == 2


def test_settings_of_a_resumed_run_are_updated(ppo_run: Path, tmp_path: Path) -> None:
    folder = copy_run(ppo_run, tmp_path)
    assert main(["resume", str(folder), *MORE_STEPS]) == 0
    assert json.loads((folder / "args.json").read_text())["total_steps"] == 320


def test_a_rollout_that_does_not_fit_into_memory_is_refused() -> None:
    args = args_class("ppo")(device="cpu", num_envs=4, num_steps=10**13, num_iterations=1, hidden=(8,))
    with pytest.raises(OutOfMemoryError, match=r"a rollout of 10,000,000,000,000 steps of 4 environments needs"):
        train(args)
