"""Tests that the suite has all benchmarks, that each starts and has a purpose, and that the tools use their results."""

from __future__ import annotations

import csv
import fcntl
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.bundled_envs import BUNDLED_ENVS

from benchmarks import multi_gpu
from benchmarks.cases import baselines, game_training, solve
from benchmarks.tools import child_processes, figures, ratios, suite, training_table
from benchmarks.tools.measure import Figures
from benchmarks.tools.quote import requote
from benchmarks.tools.record import describe_machine, read_figures, write_tables
from benchmarks.tools.sources import source_hashes
from gpuvec.doctor import Driver, Gpu

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
SCRIPTS = {
    f"peers.{file.stem}" if file.parent.name == "peers" else file.stem: file
    for file in sorted(FOLDER.rglob("*.py"))
    if 'Figures("' in file.read_text()
}


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script from the root of the checkout, as a user does."""
    command = [sys.executable, str(script.relative_to(ROOT)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


class TestSuite:
    def test_suite_has_every_benchmark(self) -> None:
        assert {benchmark.name: benchmark.script for benchmark in suite.BENCHMARKS} == SCRIPTS

    @pytest.mark.parametrize("name", SCRIPTS)
    def test_each_benchmark_has_help_without_a_gpu(self, name: str) -> None:
        process = run(SCRIPTS[name], "--help")
        assert process.returncode == 0, process.stderr
        assert "--json" in process.stdout
        (benchmark,) = (benchmark for benchmark in suite.BENCHMARKS if benchmark.name == name)
        assert benchmark.purpose
        assert all(option in process.stdout for option in benchmark.arguments if option.startswith("--"))

    @pytest.fixture
    def scripts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replaces the benchmarks: one works, one fails, and one starts a process and does not end."""
        folder = tmp_path / "cases"
        folder.mkdir()
        (folder / "works.py").write_text("import sys\nopen(sys.argv[-1], 'a').write('figure\\n')\n")
        (folder / "fails.py").write_text("raise SystemExit(3)\n")
        lock = f"import fcntl, time; lock = open({str(tmp_path / 'lock')!r}, 'w'); fcntl.flock(lock, fcntl.LOCK_EX)"
        child = f"{lock}; time.sleep(20); open({str(tmp_path / 'late')!r}, 'w')"
        (folder / "hangs.py").write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n")
        monkeypatch.setattr(suite, "FOLDER", tmp_path)
        limits = {"fails": 1800, "hangs": 3, "works": 1800}
        monkeypatch.setattr(suite, "BENCHMARKS", tuple(suite.Benchmark(*item) for item in limits.items()))

    @pytest.mark.usefixtures("scripts")
    def test_a_failed_benchmark_does_not_stop_the_next_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = tmp_path / "figures.jsonl"
        monkeypatch.setattr(sys, "argv", ["suite.py", "--json", str(lines), "--to", str(tmp_path / "curves")])
        assert suite.main() == 1
        assert lines.read_text() == "figure\n"
        summary = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[-3:]]
        assert summary == [["fails", "status", "3"], ["hangs", "status", "124"], ["works", "status", "0"]]
        with (tmp_path / "lock").open("w") as lock:
            # The child process has the lock until it ends.
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert not (tmp_path / "late").exists(), "a process that the benchmark started outlived it"

    @pytest.mark.usefixtures("scripts")
    def test_a_single_benchmark_can_be_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["suite.py", "works", "--json", str(tmp_path / "a"), "--to", str(tmp_path)])
        assert suite.main() == 0
        assert not (tmp_path / "late").exists()


class TestScripts:
    # The last two measure steps and trainings with the tools of the others.
    @pytest.mark.first_variants(1)
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "arguments", "figure"),
        [
            ("scaling", "--devices cpu --envs CartPole-v1 --sizes 64 --agents", "cpu.CartPole-v1.64"),
            (
                "stored_rollout",
                "--envs CartPole-v1 --modes same_step --sizes 64 --steps 4 --device cpu",
                "CartPole-v1.same_step.64x4",
            ),
            ("memory_per_env", "--games grid.5 --part 0.001 --device cpu", "grid.5"),
            ("time_to_return", "--envs CartPole-v1 --sizes 10 --seeds 0 --iterations 2 --device cpu", "CartPole-v1.10.seed0"),
            ("tag_small", "--devices cpu --num-envs 2 --taggers 1 --runners 2", "cpu.2x3"),
            ("tag_training", "--seeds --episodes 2 --device cpu", "chase"),
        ],
    )
    def test_a_benchmark_runs_on_a_cpu(self, name: str, arguments: str, figure: str, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        to = ["--to", str(tmp_path / "curves.csv")] if name == "time_to_return" else []
        process = run(SCRIPTS[name], *arguments.split(), "--json", str(tmp_path / "figures.jsonl"), *to)
        assert process.returncode == 0, process.stderr
        measured, failed = read_figures(tmp_path / "figures.jsonl", source_hashes())
        assert not failed
        assert measured[f"{name}.{figure}"]["value"] > 0

    def test_training_settings_are_valid(self) -> None:
        """The test checks the settings only, because the trainings need a GPU."""
        pytest.importorskip("torch")
        from benchmarks.cases.learners import list_cases

        cases = list(list_cases())
        assert len({case.name for case in cases}) == len(cases) > 10
        assert {case.env for case in cases} <= BUNDLED_ENVS.keys()

    @pytest.mark.parametrize(
        ("name", "library"),
        [
            ("gymnax_step", "gymnax"),
            ("jax_ppo", "gymnax"),
            ("jaxmarl_mpe", "jaxmarl"),
            ("vmas_tag", "vmas"),
            ("warpdrive", "warp_drive"),
        ],
    )
    def test_a_missing_library_is_reported(self, name: str, library: str, tmp_path: Path) -> None:
        if importlib.util.find_spec(library):
            pytest.skip(f"{library} is installed")
        process = run(SCRIPTS[f"peers.{name}"], "--json", str(tmp_path / "figures.jsonl"))
        assert process.returncode == 0, process.stderr
        (row,) = map(json.loads, (tmp_path / "figures.jsonl").read_text().splitlines())
        assert library in row["failed"]


class TestWorlds:
    @pytest.mark.parametrize("worlds", ["1", pytest.param("1 2", marks=pytest.mark.slow)])
    def test_worlds_are_measured_on_a_cpu(self, worlds: str, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        largest = worlds[-1]
        words = f"--device cpu --worlds {worlds} --envs 8 --steps 4 --seconds 0.01 --rounds 1 --iterations 1 --run-steps 100"
        process = run(SCRIPTS["multi_gpu"], *words.split(), "--json", str(tmp_path / "figures.jsonl"))
        assert process.returncode == 0, process.stdout + process.stderr
        measured, failed = read_figures(tmp_path / "figures.jsonl", source_hashes())
        assert not failed
        assert measured["multi_gpu.1.torch.shards2.group"]["details"]["exchanges"] > 0
        assert measured[f"multi_gpu.{largest}.torch"]["value"] > 0.0
        assert measured[f"multi_gpu.{largest}.run"]["details"]["steps"] >= 100
        bits = measured["multi_gpu.bits.torch"]
        assert bits["value"] == 1.0
        assert bits["details"].keys() == {"world_alone", *(f"world_{world}" for world in worlds.split())}
        assert "1.fused" in process.stdout
        assert "the kernels need a GPU" in process.stdout

    def test_other_weights_in_one_world_are_a_failure(self, capsys: pytest.CaptureFixture[str]) -> None:
        results = {world: {"bits": {"torch": {str(world): digest}, "fused": {}}} for world, digest in ((1, "a"), (2, "b"))}
        assert not multi_gpu.add_bits(Figures("multi_gpu", None), results)
        assert "world_1 a  world_2 b" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("time.sleep(50)", "2 processes did not end within 2 s"),
            ("rank == '1' and sys.exit('no GPU'); time.sleep(50)", "process 1 ended with status 1\nprocess 1: no GPU"),
        ],
    )
    def test_no_process_outlives_a_failure(
        self, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(child_processes, "SECONDS_AFTER_FAILURE", 0.1)
        program = tmp_path / "program.py"
        program.write_text(
            "import fcntl, os, sys, time\nrank = os.environ['RANK']\nlock = open(sys.argv[1] + rank, 'w')\n"
            f"fcntl.flock(lock, fcntl.LOCK_EX)\n{code}\n"
        )
        with pytest.raises(child_processes.ProcessFailure, match=message):
            child_processes.run_processes(program, [str(tmp_path / "lock")], 2, 2.0)
        for rank in range(2):
            with (tmp_path / f"lock{rank}").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_process_ends_with_the_one_that_started_it(self, tmp_path: Path) -> None:
        program, lock_path = tmp_path / "program.py", tmp_path / "lock"
        program.write_text(
            f"import fcntl, sys, time\nsys.path.insert(0, {str(ROOT)!r})\n"
            "from benchmarks.tools.child_processes import end_with_parent\nend_with_parent()\n"
            f"lock = open({str(lock_path)!r}, 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
            f"open({str(tmp_path / 'started')!r}, 'w')\ntime.sleep(50)\nopen({str(tmp_path / 'late')!r}, 'w')\n"
        )
        start = (
            f"import pathlib, sys; sys.path.insert(0, {str(ROOT)!r}); from benchmarks.tools import child_processes as c; "
            f"c.run_processes(pathlib.Path({str(program)!r}), [], 1, 60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", start])
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        parent.kill()
        parent.wait()
        with lock_path.open("w") as lock:
            # The process has the lock until it ends.
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert not (tmp_path / "late").exists()


def make_untrained_networks(env: str, params: dict[str, Any]) -> dict[str, Any]:
    """Returns {role: a policy with its initial weights}."""
    from gpuvec.learners.environments import make_env
    from gpuvec.learners.ppo import PPOArgs
    from gpuvec.learners.training import make_learner

    args = PPOArgs(env=env, device="cpu", num_envs=2, num_steps=4, total_steps=8, hidden=(8,), params=params).resolved("cpu")
    envs = make_env(env, 2, params, device="cpu", output="torch", autoreset_mode="SameStep")
    learner = make_learner(dict.fromkeys(envs.roles, args), envs)
    return {role: policy.network for role, policy in learner.policies.items()}


@pytest.mark.slow
def test_the_score_of_a_hunt_is_the_number_of_sheep_that_a_wolf_eats_in_100_steps() -> None:
    """On a map of one cell, the only wolf eats a sheep in each step until none is left, whatever the animals do."""
    pytest.importorskip("torch")
    from benchmarks.cases.game_training import score_hunt
    from benchmarks.cases.solve import Match

    env, params = "gpuvec/Predators-v0", {"num_wolves": 1, "num_sheep": 40, "height": 1, "width": 1, "initial_share": 1.0}
    params |= dict.fromkeys(("view_ahead", "view_behind", "view_side"), 1)
    score = score_hunt(make_untrained_networks(env, params), Match(env, params, episodes=5, seed=3, device="cpu"))
    pairs = [f"{wolves}_wolves_{sheep}_sheep" for wolves in ("trained", "random") for sheep in ("trained", "random")]
    assert score == (100.0, dict.fromkeys(pairs, 100.0))


@pytest.mark.slow
def test_returns_of_both_roles_are_compared_for_all_pairs() -> None:
    """A planner that has no subsidies to pay changes nothing, so that returns depend on the policy of the states alone."""
    pytest.importorskip("torch")
    from benchmarks.cases.game_training import compare_returns
    from benchmarks.cases.solve import Match

    env, params = "gpuvec/EpidemicEconomy-v0", {"num_states": 2, "max_subsidy": 0.0, "max_episode_steps": 60}
    match = Match(env, params, episodes=3, seed=3, device="cpu")
    returns = compare_returns(make_untrained_networks(env, params), match)
    assert len(returns) == 8
    for role in ("state", "planner"):
        by_pair = {name: value for name, value in returns.items() if name.endswith(f"_return_of_{role}")}
        for states in ("trained", "random"):
            assert len({value for name, value in by_pair.items() if name.startswith(f"{states}_state_")}) == 1
        assert len(set(by_pair.values())) == 2


def test_a_training_that_fails_loses_no_other_one(tmp_path: Path) -> None:
    """The first goal has a seed that failed, and the second one has no other. The curve of each seed is written at once."""
    goals = [solve.Goal(name, "ppo", bar=1.0) for name in ("First-v0", "Second-v0", "Third-v0")]
    path, lines_before = tmp_path / "curves.csv", []

    def trainings() -> Iterator[solve.Solution | str]:
        for goal, failing_seeds in zip(goals, ({1}, {0, 1, 2}, set[int]()), strict=True):
            for seed in range(3):
                lines_before.append(len(path.read_text().splitlines()))
                solution = solve.Solution(seed, float(seed), [(64, "0.5", f"{seed}")], 64.0, {})
                yield f"OutOfMemoryError: {goal.env}" if seed in failing_seeds else solution

    with path.open("w", newline="") as file:
        solve.write_results(Figures("solve", tmp_path / "rows.jsonl"), goals, range(3), trainings(), file)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    failures = {row["name"]: row["failed"] for row in rows if "failed" in row}
    assert failures == {
        "First-v0.ppo.seed_1": "OutOfMemoryError: First-v0",
        **{f"Second-v0.ppo.seed_{seed}": "OutOfMemoryError: Second-v0" for seed in range(3)},
    }
    passed = {row["name"]: (row["value"], row["details"]["seeds"]) for row in rows if row["name"].endswith(".passed")}
    assert passed == {"First-v0.ppo.passed": (1, 2), "Third-v0.ppo.passed": (2, 3)}
    assert lines_before == [0, 2, 2, 3, 3, 3, 3, 4, 5]
    with path.open() as file:
        curves = [(row["env"], row["seed"]) for row in csv.DictReader(file)]
    assert curves == [("First-v0", "0"), ("First-v0", "2"), *(("Third-v0", seed) for seed in "012")]


def test_the_error_of_a_training_is_its_result() -> None:
    assert solve.attempt((solve.Goal("Nowhere-v0", "unknown", bar=1.0), 0, "cpu")).startswith("ValueError: ")


def test_ratios_compare_the_best_results_of_both_sides() -> None:
    rows: dict[str, Any] = {
        "learners.ppo.4096": {"value": 40.0, "unit": "M steps/s"},
        "learners.ppo.4096.torch": {"value": 20.0, "unit": "M steps/s"},
        "learners.ppo.4096.collect": {"value": 500.0, "unit": "us"},
        "peers.gymnax.A.step.8": {"value": 900.0, "unit": "M steps/s"},
        "peers.gymnax.A.scan.8": {"value": 1.2, "unit": "G steps/s"},
        "peers.gymnax.A.scan.88": {"value": 9.0, "unit": "G steps/s"},
        "peers.p.475.rate1.seed0": {"value": 0.5, "unit": "s"},
        "peers.p.475.rate2.seed0": {"value": 0.3, "unit": "s"},
    }
    assert ratios.best_figure(rows, "learners.ppo.4096*") == ("learners.ppo.4096", 40e6)
    assert ratios.best_figure(rows, "peers.gymnax.A.*.8") == ("peers.gymnax.A.scan.8", 1.2e9)
    assert ratios.best_figure(rows, "peers.p.475.*") == ("peers.p.475.rate2.seed0", 0.3)
    assert ratios.best_figure(rows, "peers.vmas.*") is None


def test_ratios_are_appended_to_the_figures(tmp_path: Path) -> None:
    file, current = tmp_path / "figures.jsonl", source_hashes()
    ppo, grid = ("CartPole-v1", "vector", "learners"), ("TagGridWorld-v0",)
    measured = [
        ("ppo_end_to_end", "4096.median", 0.2, "s", ppo, {}),
        ("peers", "jax_ppo.475.4096.rate0.005.seed0", 0.3, "s", (), {}),
        ("tag_step", "grid.2000x5", 400.0, "M steps/s", grid, {}),
        ("peers", "warpdrive.grid.2000x5.trainer", 10.0, "M steps/s", (), {"of_h200": 0.8}),
        ("peers", "warpdrive.grid.2000x5.a2c", 999.0, "M steps/s", (), {}),
    ]
    rows = [
        {"benchmark": benchmark, "name": name, "value": value, "unit": unit, "of": of, "details": details}
        | {"sources": {source: current[source] for source in of}}
        for benchmark, name, value, unit, of, details in measured
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    process = run(SCRIPTS["ratios"], "--json", str(file))
    assert process.returncode == 0, process.stderr
    recorded, failed = read_figures(file, current)
    assert failed == []
    assert recorded["ratios.ppo.475.jax_ppo"]["value"] == pytest.approx(1.5)
    assert recorded["ratios.ppo.475.jax_ppo"]["of"] == list(ppo)
    assert recorded["ratios.grid.2000x5.warpdrive"]["value"] == pytest.approx(40.0)
    assert recorded["ratios.grid.2000x5.warpdrive"]["details"]["of_h200"] == 0.8
    assert sum(name.startswith("ratios.") for name in recorded) == 2


def test_a_record_names_gpu_driver_and_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver((13, 0), "580.65.06", (Gpu("NVIDIA H200", 10**9),))
    monkeypatch.setattr("gpuvec.doctor.find_driver", lambda: driver)
    assert describe_machine() == {"device": "NVIDIA H200", "driver": "580.65.06", "cuda": "13.0"}


def test_a_record_gives_tables_and_pictures(tmp_path: Path) -> None:
    details = {"envs": 64, "roofline": 2.0}
    recorded = {
        f"scaling.{device}.CartPole-v1.{n}": {"value": n / 64, "unit": "G steps/s", "details": details}
        for device in ("cuda", "cpu")
        for n in (256, 64)
    }
    recorded["scaling.cuda.grid.full.8"] = {"value": 3.0, "unit": "G agent steps/s", "details": {**details, "agents": 8}}
    recorded["solve.CartPole-v1.ppo.passed"] = {"value": 10, "unit": "seeds", "details": {}}
    write_tables({"figures": recorded, "device": "a card", "commit": "abc"}, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["scaling.csv"]  # solve.csv has the curves
    with (tmp_path / "scaling.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0] | {"agents": ""} == {
        "name": "cuda.CartPole-v1.256", "value": "4.0", "unit": "G steps/s", "envs": "64", "roofline": "2.0", "agents": "",
        "device": "a card", "commit": "abc",
    }  # fmt: skip
    assert figures.group_rates(rows, "environments")["cuda", "CartPole-v1"] == [(64.0, 1.0, 2.0), (256.0, 4.0, 2.0)]
    assert figures.group_rates(rows, "agents") == {("cuda", "grid.full"): [(8.0, 3.0, 2.0)]}
    pytest.importorskip("matplotlib")
    process = run(FOLDER / "tools" / "figures.py", str(tmp_path))
    assert process.returncode == 0, process.stderr
    assert "solve.png is left out" in process.stdout
    assert {file.name for file in tmp_path.glob("*.png")} == {"scaling.png", "cpu_gpu.png"}


class TestTrainingTable:
    DOCUMENT = "Before.\n<!-- trainings of game_training -->\nan old table\n<!-- end of game_training -->\nAfter 5.\n"

    @pytest.fixture
    def record(self) -> dict[str, Any]:
        """A record of two goals, one of them with parameters and without steps to the bar."""
        goals = {goal.task: goal for goal in game_training.GOALS}
        figures: dict[str, Any] = {}
        steps = {"policy_steps.median": 0.25, "policy_steps.worst": 1.5, "last_return_steps.median": 0.75, "steps.worst": 7.0}
        for task, values in (
            ("SimpleSpread-v0", {"passed": 9, "lowest": -12.345, "mean": -11.5, **steps}),
            ("RICE-N-v0.negotiation", {"passed": 10, "lowest": 6.25, "mean": 6.5, "climate_index": 0.28125}),
        ):
            bounds = {"lowest": 0.25, "highest": 0.375}
            details = {"passed": {"bar": goals[task].bar, "seeds": 10}, "climate_index": bounds}
            details["policy_steps.median"] = {"num_envs": 4096}
            for name, value in values.items():
                figures[f"game_training.{task}.ppo.{name}"] = {"value": value, "details": details.get(name, {})}
        return {"figures": figures}

    def test_a_document_gets_a_row_for_each_goal(self, record: dict[str, Any]) -> None:
        pytest.importorskip("torch")
        text = training_table.update_tables(self.DOCUMENT, {"h200.json": record})
        assert text.startswith("Before.\n<!-- trainings of game_training -->\n| command |")
        assert text.endswith("<!-- end of game_training -->\nAfter 5.\n")
        assert "an old table" not in text
        rows = [line for line in text.splitlines() if line.startswith(("| `gpuvec train", "| `python bench"))]
        assert len(rows) == len(game_training.GOALS) == 8
        assert [row for row in rows if "not measured" not in row] == [rows[1], rows[6]]
        of, negotiation = "h200.json game_training.SimpleSpread-v0.ppo", "h200.json game_training.RICE-N-v0.negotiation.ppo"
        assert rows[1] == (
            f"| `gpuvec train --env gpuvec/SimpleSpread-v0` | 4,096 | -10 | 9 <!-- {of}.passed --> of 10 "
            f"| -12.35 <!-- {of}.lowest --> | -11.50 <!-- {of}.mean --> | 0.2500 <!-- {of}.policy_steps.median -->, "
            f"1.500 <!-- {of}.policy_steps.worst --> | 0.7500 <!-- {of}.last_return_steps.median --> | |"
        )
        assert "`gpuvec train --env gpuvec/RICE-N-v0 --params negotiation True` | | 6.2 | 10 <" in rows[6]
        assert rows[6].endswith("| | | |")
        assert "7.000" not in text  # the steps of an older record are of another measure
        assert f"| RICE-N-v0.negotiation | climate index | 0.2812 <!-- {negotiation}.climate_index --> | 0.25 | 0.375 |" in text
        # A second run replaces the tables by the same, and each quotation is that of the record.
        assert training_table.update_tables(text, {"h200.json": record}) == text == requote(text, {"h200.json": record})

    def test_a_row_is_of_the_first_record_that_has_its_goal(self, record: dict[str, Any]) -> None:
        pytest.importorskip("torch")
        of = "game_training.SimpleSpread-v0.ppo.passed"
        later = {"figures": {of: {"value": 3, "details": {"bar": -10.0, "seeds": 4}}}}
        other = {"figures": {name: figure for name, figure in record["figures"].items() if "RICE-N" in name}}
        text = training_table.update_tables(self.DOCUMENT, {"a.json": other, "b.json": later, "c.json": record})
        assert f"3 <!-- b.json {of} --> of 4" in text
        assert "<!-- a.json game_training.RICE-N-v0.negotiation.ppo.passed -->" in text
        assert "c.json" not in text

    def test_documents_and_records_that_do_not_fit_raise(self, record: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="the document has tables of no benchmark; there must be two lines such as"):
            training_table.update_tables("No table.", {"h200.json": record})
        with pytest.raises(ValueError, match="the document has tables of scaling"):
            training_table.update_tables(self.DOCUMENT.replace("game_training", "scaling"), {"h200.json": record})
        record["figures"]["game_training.SimpleSpread-v0.ppo.passed"]["details"] |= {"bar": -15.0, "returns": [-9.0, -10.0]}
        with pytest.raises(ValueError, match="is for the threshold -15, and SimpleSpread-v0 now has -10: measure again"):
            training_table.update_tables(self.DOCUMENT, {"h200.json": record})

    @pytest.mark.parametrize(("lowest", "returns", "passed"), [(-9.96, [-9.5, -10.0], 2), (-12.5, [-9.5, -12.5], 1)])
    def test_seeds_that_reach_a_later_threshold_are_counted(
        self, record: dict[str, Any], lowest: float, returns: list[float], passed: int
    ) -> None:
        """Returns are rounded in a record, and the lowest one is not. Steps to another threshold say nothing."""
        pytest.importorskip("torch")
        of = "game_training.SimpleSpread-v0.ppo"
        record["figures"][f"{of}.passed"]["details"] |= {"bar": -15.0, "seeds": 2, "returns": returns}
        record["figures"][f"{of}.lowest"]["value"] = lowest
        text = training_table.update_tables(self.DOCUMENT, {"h200.json": record})
        assert f"SimpleSpread-v0` | 4,096 | -10 | {passed} of 2 | {lowest:.4g}" in text.replace("-9.960", "-9.96").replace(
            "-12.50", "-12.5"
        )
        assert "policy_steps.median" not in text


class TestBaselines:
    """Play without learning, on observations for which the right action is known."""

    def test_a_search_along_coordinates_ends_where_no_level_is_better(self) -> None:
        def returns_of(candidates: Sequence[dict[str, int]]) -> list[float]:
            return [-((one["a"] - 3.0) ** 2) - (one["a"] + one["b"] - 5.0) ** 2 for one in candidates]

        assert baselines.climb({"a": 0, "b": 1}, {"a": 6, "b": 6}, returns_of, first=1) == {"a": 3, "b": 2}

    def test_rules_choose_known_actions(self) -> None:
        torch = pytest.importorskip("torch")
        picture = torch.zeros(3, 4, 10, 10, dtype=torch.uint8)
        picture[:, 0, 9, 5] = 1
        picture[[0, 1, 2], 1, 3, [5, 2, 8]] = 1
        assert baselines.follow_ball(picture).tolist() == [0, 1, 2]
        wanted = torch.tensor([[0.0, 0.01], [-1.0, 0.5], [1.0, 0.5], [0.1, -0.5], [0.1, 0.5]])
        assert baselines.steer(wanted, torch.zeros(5, 2)).tolist() == [0, 1, 2, 3, 4]
        allowed = torch.tensor([[True] * 7, [True, True, True, False, True, True, True], [False] * 6 + [True]])
        assert baselines.middle_columns(torch.zeros(3), allowed).tolist() == [3, 2, 6]
        # Agents 0 and 1 chase the runner, agent 2, in columns 0, 9 and 5 and rows 0, 1 and 9.
        grid = torch.tensor([[0.0, 0.9, 0.5], [0.0, 0.1, 0.9], [0.0, 0.0, 1.0]]).flatten().expand(1, 3, 9)
        obs = torch.cat([grid, torch.eye(3).unsqueeze(0), torch.zeros(1, 3, 1)], -1)
        assert baselines.chase(obs)[0, :2].tolist() == [3, 3]
        params = BUNDLED_ENVS["Predators-v0"].params
        ahead, side = params.view_ahead, params.view_side
        window = torch.zeros(4, 5, ahead + 1 + params.view_behind, 2 * side + 1, dtype=torch.uint8)
        for k, (row, column) in enumerate(((ahead - 2, side), (ahead - 1, side - 3), (ahead + 1, side + 2))):
            window[k, 1, row, column] = 64
        assert baselines.hunt(window).tolist() == [1, 2, 3, 1]

    def test_a_speaker_and_a_listener_agree_on_the_goal(self) -> None:
        torch = pytest.importorskip("torch")
        landmarks = [[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]]
        heard = torch.cat([torch.eye(3), torch.zeros(1, 3)])
        listener = torch.cat([torch.zeros(4, 2), torch.tensor(landmarks).flatten().expand(4, 6), heard], -1).unsqueeze(1)
        speaker = (0.15 + 0.5 * heard).unsqueeze(1)
        actions = baselines.speak_and_listen({"speaker": speaker, "listener": listener})
        assert actions["speaker"][:3, 0].tolist() == [0, 1, 2]
        assert actions["listener"][:, 0].tolist() == [2, 3, 1, 0]

    def test_the_table_of_the_site_has_each_game_and_its_trained_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(ROOT / "docs/_ext")
        pages = importlib.import_module("environment_pages")
        text = pages.play_table()
        for game in baselines.GAMES:
            name = game.task.replace(".", ", ").replace("_", " ")
            assert f"| {name} | random |" in text
            of_env = pages.play_table(game.task.partition(".")[0])
            assert set(of_env.splitlines()) <= set(text.splitlines())
            assert "policy that comes with gpuvec" in of_env or "trained with tuned settings" in of_env
        assert pages.play_table("CartPole-v1") == ""
        # Trained scores are of the same measure: an earlier one of ConnectFour was against random moves.
        assert {goal.task for goal in game_training.GOALS} <= {game.task for game in baselines.GAMES}
