"""Damaged or hostile files of populations and searches: each is refused by an error that names the file and the problem."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpuvec.errors import CheckpointError, GpuvecError  # imported after torch, which it needs
from gpuvec.learners.config.training_config import PPOArgs
from gpuvec.learners.population.population_args import PopulationArgs
from gpuvec.learners.population.population_training import make_population, train_population
from gpuvec.learners.population.results.population_folder import PopulationWriter, load_population
from gpuvec.learners.population.results.population_history import read_population_history
from gpuvec.learners.population.search.population_based_training import PBTArgs, load_pbt, pbt_part, population_based_training
from gpuvec.learners.population.search.search_space import SearchParameter, SweepArgs
from gpuvec.learners.population.search.sweep import Search, SweepWriter, load_sweep, population_of_part
from gpuvec.learners.runs.archives import RECORD, NpzReader, nest, write_npz
from gpuvec.learners.runs.folder import RunFolder

BASE = PPOArgs(
    env="gpuvec/CartPole-v1", device="cpu", num_envs=2, num_steps=8, num_minibatches=2, hidden=(8,), anneal_lr=False,
    total_steps=96, params={"max_episode_steps": 16},
)  # fmt: skip
RATE = SearchParameter("learning_rate", "log", 1e-4, 1e-2)
NAMES = {"population": "population.npz", "pbt": "population.npz", "search": "progress.npz"}
FUZZ_INPUTS = 150  # of each kind of file
Arrays = dict[str, Any]


def stop_after(launches: int) -> Callable[[], bool]:
    """Returns a function that stops a training after some launches."""
    return iter([False] * launches + [True]).__next__


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of trainings that were stopped, whose files the tests replace."""
    args = PopulationArgs(BASE, 3, settings={"gamma": (0.9, 0.99, 0.5)}, params={"gravity": (9.0, 9.8, 3.0)})
    pbt = PBTArgs(BASE, (RATE,), 4, interval=2, fraction=0.25)
    trained = population_based_training(pbt, should_stop=stop_after(2))
    assert (trained.schedule.sources != np.arange(4)).any(), "agents copy others"
    search = Search(SweepArgs(BASE, (RATE,), num_trials=4, halvings=1, reduction=2, num_confirmed=2, confirmation_seeds=2))
    assert search.run(should_stop=stop_after(4)) is None
    with closing(PopulationWriter(tmp_path_factory.mktemp("population"))) as writer:
        population_path = writer.save(train_population(args, last_iteration=4))
    with closing(PopulationWriter(tmp_path_factory.mktemp("pbt"))) as writer:
        pbt_path = writer.save(trained.result, pbt_part(pbt, trained))
    with closing(SweepWriter(tmp_path_factory.mktemp("search"), search.args)) as sweep_writer:
        sweep_writer.save_progress(search.progress)
        search_path = sweep_writer.open().path
    return {"population": population_path, "pbt": pbt_path, "search": search_path}


@pytest.fixture
def content(folders: dict[str, Path], kind: str) -> Any:
    """The arrays of a file and its record, which the test changes; the file is as before afterwards."""
    path = folders[kind] / NAMES[kind]
    original = path.read_bytes()
    yield arrays_of(original)
    path.write_bytes(original)


def arrays_of(file: bytes) -> tuple[Arrays, dict[str, Any]]:
    """Returns the arrays of a file, and its record."""
    reader = NpzReader(io.BytesIO(file), "f")
    record = reader.record()
    return {name: x for name, x in reader.read_all().items() if name != RECORD}, record


def read(folder: Path, kind: str) -> None:
    """Reads all of a folder, and restores the state of its population."""
    if kind == "search":
        with RunFolder(folder) as run:
            args, progress = load_sweep(run)
        population_args, state = population_of_part(args, progress), progress.state
    elif kind == "pbt":
        _, trained = load_pbt(folder)
        population_args, state = trained.result.args, trained.result.state
    else:
        with RunFolder(folder) as run:
            read_population_history(run)
        saved = load_population(folder)
        population_args, state = saved.args, saved.state
    if state is not None:
        with closing(make_population(population_args)) as population:
            population.load_state_dict(state)


# ---- what is refused, and why

CHANGES: list[tuple[str, Callable[[Arrays, dict[str, Any]], Any], str]] = [
    ("population", lambda a, r: r["base"].update(hidden=[10**9]), r"needs at least 1,000,000,000 weights, and the network"),
    ("population", lambda a, r: r["base"].update(num_envs=10**9), r"'state/seed' must be int64 of the shape \(3000000000,\)"),
    ("population", lambda a, r: r["base"].update(num_envs=None), "num_envs and total_steps must be numbers"),
    ("population", lambda a, r: r["base"].update(algorithm="a2c"), "base lacks|base has"),
    ("population", lambda a, r: r["base"].update(gamma=2), "gamma must be from 0 to 1, got 2"),
    ("population", lambda a, r: r.update(num_agents=2**40), "and from 1 to 1,048,576 agents"),
    ("population", lambda a, r: r.update(num_agents=4), r"must be float32 of the shape \(4, 4\), got float32"),
    ("population", lambda a, r: r.update(format=0), "has the format 0; this gpuvec reads 1"),
    ("population", lambda a, r: r.update(iteration=3), "the numbers of 4 iterations, and the state of another one"),
    ("population", lambda a, r: a.update(steps=a["steps"][::-1].copy()), "steps must be numbers above 0 that ascend"),
    ("population", lambda a, r: a.update(steps=a["steps"] + 16), "its numbers are not those of the iterations to 4"),
    ("population", lambda a, r: a.update(seconds=-a["seconds"]), "seconds must be numbers of at least 0 that do not descend"),
    ("population", lambda a, r: a.update(fault=a["fault"] + 9), "fault has a number that is not known"),
    ("population", lambda a, r: a.update(stopped_at=a["stopped_at"] + 2), "the state has another stopped_at than the numbers"),
    ("population", lambda a, r: a.update(seeds=a["seeds"] + 1), "the environments have other seeds than the agents"),
    ("population", lambda a, r: a.pop("metric.return"), "it has no array 'metric.return'"),
    ("population", lambda a, r: a.update({"setting.gamma": a["setting.gamma"][::-1].copy()}), "other values of gamma"),
    ("population", lambda a, r: a.update({"setting.hidden": a["setting.gamma"]}), "hidden cannot differ between agents"),
    ("population", lambda a, r: a.update({"state/tensors/obs": a["state/tensors/obs"][:-1]}), "must have 6 rows, got"),
    ("population", lambda a, r: a.update({"state/tensors/x": a["seeds"]}), "its state has 'x', which is not known"),
    ("population", lambda a, r: a.update({"state/x": a["seeds"]}), "its array 'state/x' is not known"),
    ("population", lambda a, r: a.update({"state/tensors/obs/x/y": a["seeds"]}), "must have 6 rows|is in an array"),
    ("population", lambda a, r: a.update({"state/iteration": np.array(3)}), "its iteration is not the number of rollouts"),
    ("pbt", lambda a, r: r["pbt"].update(parameters=[]), "parameters must be a list of settings"),
    ("pbt", lambda a, r: r["pbt"].update(factors=3), "not iterable"),
    ("pbt", lambda a, r: r["pbt"].update(factors=["a", 1.0]), "factors must be two numbers above 0"),
    ("pbt", lambda a, r: r["pbt"].update(factors=[10**400, 1]), "factors must be two numbers above 0"),
    ("pbt", lambda a, r: r["pbt"].update(factors=[float("inf"), 1]), "factors must be two numbers above 0"),
    ("pbt", lambda a, r: r["pbt"].update(factors=[True, 1.25]), "factors must be two numbers above 0"),
    ("pbt", lambda a, r: r["pbt"].update(interval=10**30), "interval must be an integer from 1 to 2147483647, got 10000000"),
    ("pbt", lambda a, r: r["pbt"].update(interval=True), "interval must be an integer from 1 to 2147483647, got True"),
    ("pbt", lambda a, r: r["pbt"].update(fraction=10**400), "fraction must be above 0 and at most 0.5"),
    ("pbt", lambda a, r: r["pbt"].update(fraction="0.2"), "fraction must be above 0 and at most 0.5|not supported"),
    ("pbt", lambda a, r: r["pbt"].update(parameters=[["learning_rate", "log", 1e-4, 10**400]]), "learning_rate|parameters"),
    ("pbt", lambda a, r: r["pbt"].update(parameters=[["learning_rate", "log", -(10**400), 1.0]]), "learning_rate|parameters"),
    ("pbt", lambda a, r: r.pop("pbt"), "pbt must be a dict"),
    ("pbt", lambda a, r: r["pbt"].update(interval=3), "its changes are not those of every 3 iterations until 4"),
    ("pbt", lambda a, r: a.update({"schedule/iterations": np.array([4, 2])}), "its changes are not those of every 2"),
    ("pbt", lambda a, r: a.update({"schedule/sources": np.roll(a["schedule/sources"], 1, 1)}), "do not follow from each other"),
    ("pbt", lambda a, r: a.update({"schedule/sources": a["schedule/sources"] + 4}), "sources that are none of 4 agents"),
    (
        "pbt",
        lambda a, r: a.update({"schedule/setting.learning_rate": a["schedule/setting.learning_rate"][::-1].copy()}),
        "that do not follow from each other|than the last change gave them",
    ),
    ("pbt", lambda a, r: a.update({"schedule/setting.learning_rate": np.full((3, 4), 9.0)}), "outside its range"),
    ("search", lambda a, r: r.update(part=7), "part must be a number from 0 to 2"),
    ("search", lambda a, r: r.update(trials=[0, 0]), "trials must be different numbers from 0 to 3"),
    ("search", lambda a, r: r.update(trials=[1]), "must be float64 of the shape|must be int64 of the shape|must be float32"),
    ("search", lambda a, r: a.update({"trial/learning_rate": np.full(4, -1.0)}), "its trials cannot be trained"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "message"), CHANGES)
def test_a_hostile_file_is_refused(
    folders: dict[str, Path], kind: str, content: tuple[Arrays, dict[str, Any]], change: Callable[..., Any], message: str
) -> None:
    path, (arrays, record) = folders[kind] / NAMES[kind], content
    change(arrays, record)
    with path.open("wb") as file:
        write_npz(file, arrays, record)
    with pytest.raises(CheckpointError, match=message) as error:
        read(folders[kind], kind)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("kind", ["population"])
def test_arrays_are_not_larger_than_their_file(folders: dict[str, Path], kind: str, content: Any) -> None:
    """A file of 2 MB may claim 2 GiB, by compression or in a header."""
    path = folders[kind] / NAMES[kind]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("steps.npy", "w") as entry:
        np.lib.format.write_array(entry, np.zeros(2**22))
    assert path.stat().st_size < 2**16
    with pytest.raises(CheckpointError, match=r"population.npz is damaged: its arrays are compressed, or larger than the file"):
        read(path.parent, kind)
    with zipfile.ZipFile(path, "w") as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**28,)})
        archive.writestr("steps.npy", header.getvalue())
    with pytest.raises(CheckpointError, match=r"'steps' has the shape \(268435456,\), and another number of bytes"):
        read(path.parent, kind)
    for descr in ("|O", "<U4", ">f8", "|V8"):
        with zipfile.ZipFile(path, "w") as archive:
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": (0,)})
            archive.writestr("steps.npy", header.getvalue())
        with pytest.raises(CheckpointError, match=r"'steps' has the type .*, and must have numbers"):
            read(path.parent, kind)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_trials": 2**40}, "at most 1,048,576 train at once"),
        ({"halvings": 10**9}, "give fewer halvings"),
        ({"base": {"algorithm": "ppo", "hidden": [10**9]}}, "base lacks"),
        ({"sampler": []}, "sampler must be sobol or random"),
    ],
)
def test_hostile_settings_of_a_search_are_refused(folders: dict[str, Path], settings: dict[str, Any], message: str) -> None:
    path = folders["search"] / "sweep.json"
    original = path.read_text()
    path.write_text(json.dumps(json.loads(original) | settings))
    with RunFolder(path.parent) as run, pytest.raises(CheckpointError, match=message) as error:
        load_sweep(run)
    assert str(path) in str(error.value)
    path.write_text(original)


def test_names_are_a_nesting() -> None:
    assert nest({"a/b": 1, "a/c/d": 2, "e": 3}) == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    for names in (["a", "a/b"], ["a/b", "a"], ["/".join("abcdefghijk")]):
        with pytest.raises(ValueError, match=r"is in an array|is a group and an array, or is nested too deeply"):
            nest(dict.fromkeys(names, 1))


# ---- fuzz

HOSTILE_NUMBERS = [-1, 0, 1, 7, 10**9, 2**31, 2**63, 2**70, 1e308, -0.5, float("nan"), float("inf"), True]
HOSTILE_VALUES = [*HOSTILE_NUMBERS, None, "", "x" * 1000, "\x1b[2J", [], [1] * 9, {}, {"a": {}}, "cuda:99", [[1, 2]]]


def changed_array(rng: np.random.Generator, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns an array with other numbers, or another shape or type."""
    way = int(rng.integers(7))
    if way == 0:
        return x.astype(rng.choice(np.array(["f8", "f4", "i8", "i4", "u1", "?", "c8"])))
    if way == 1:
        return np.array(rng.permuted(x)) if x.ndim else x
    if way == 2:
        return x[..., np.newaxis] if rng.integers(2) else x.reshape(-1)[: int(rng.integers(x.size + 1))]
    if way == 3:
        return np.concatenate([x, x]) if x.ndim else np.array([x, x])
    if way == 4:
        return np.zeros((2**40, 0), x.dtype)
    changed = x.copy()
    with np.errstate(all="ignore"):
        number = HOSTILE_NUMBERS[int(rng.integers(len(HOSTILE_NUMBERS)))]
        value = np.array(number, np.float64).astype(x.dtype)
    changed.reshape(-1)[rng.random(x.size) < 0.3] = value
    return changed


def changed_record(rng: np.random.Generator, values: dict[str, Any]) -> None:
    """Replaces a value in nested dicts, or removes it."""
    name = str(rng.choice(sorted(values)))
    if isinstance(values[name], dict) and values[name] and rng.random() < 0.9:
        changed_record(rng, values[name])
    elif rng.random() < 0.1:
        del values[name]
    else:
        values[name] = HOSTILE_VALUES[int(rng.integers(len(HOSTILE_VALUES)))]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of casts of numbers that are not finite
@pytest.mark.parametrize("kind", NAMES)
def test_no_input_ends_in_another_error(folders: dict[str, Path], kind: str, content: Any) -> None:
    """Changes arrays, records and bytes by a fixed seed; what is accepted can be restored."""
    path, rng, refused = folders[kind] / NAMES[kind], np.random.default_rng(1), 0
    accepted, original = 0, path.read_bytes()
    for number in range(FUZZ_INPUTS):
        arrays, record = arrays_of(original)
        if number % 5 == 4:
            damaged = bytearray(original[: int(rng.integers(len(original)))] if number % 10 == 4 else original)
            for position in rng.integers(max(len(damaged), 1), size=int(rng.integers(1, 8))) if damaged else ():
                damaged[position] = int(rng.integers(256))
            path.write_bytes(bytes(damaged))
        else:
            for _ in range(int(rng.integers(1, 3))):
                name = str(rng.choice(sorted(arrays)))
                if rng.random() < 0.5:
                    changed_record(rng, record)
                elif rng.random() < 0.1:
                    del arrays[name]
                else:
                    arrays[name] = changed_array(rng, arrays[name])
            with path.open("wb") as file:
                write_npz(file, arrays, record)
        try:
            read(path.parent, kind)
        except CheckpointError as error:
            refused += str(path) in str(error)
        except GpuvecError:  # of what depends on the environment, where the state is restored
            refused += 1
        else:
            accepted += 1
    assert accepted + refused == FUZZ_INPUTS, "each message names the file"
    assert accepted < FUZZ_INPUTS // 4
    path.write_bytes(original)
    read(path.parent, kind)
