"""Trainings of the command line in several processes: signals, killed processes, messages and restarts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.support.process_trainings import finish, run_command, run_command_with_quick_heartbeats, start_processes

from gpuvec.cli import main
from gpuvec.cli.train_command import torchrun_command
from gpuvec.errors import LostProcessError, ProcessesError, RunWriteError
from gpuvec.learners.deferred_signals import deferred_signals
from gpuvec.learners.runs.checkpoint import list_checkpoints, load
from gpuvec.learners.runs.folder import RunFolder
from gpuvec.learners.runs.run_writer import RunWriter
from gpuvec.learners.shards import join
from gpuvec.learners.shards.torchrun import Launch, read_launch
from gpuvec.python_command import python_command

STEPS_PER_ITERATION = 64
TRAIN = (
    "train --algorithm a2c --env gpuvec/CartPole-v1 --device cpu --num-envs 8 --num-steps 8 --hidden 8 --no-anneal-lr "
    "--checkpoint-every 5 --episodes 2 --shards 2"
)
RESUME = "--checkpoint-every 5 --episodes 2"
KILLS = 20
ENDLESS = f"{TRAIN} --total-steps 1000000000"


def start(folder: Path, words: str, task: Callable[[Path], None] = run_command, **variables: str) -> list[Any]:
    """Starts two processes that run a command."""
    (folder / "words.json").write_text(json.dumps(words.split()))
    return start_processes(task, 2, folder, **variables)


def wait_for_checkpoint(runs: Path, iteration: int, name: str = "*") -> Path:
    """Waits until there is a checkpoint of this iteration or a later one, and returns the run folder."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        for run in runs.glob(name):
            if any(int(path.stem.partition("-")[2]) >= iteration for path in list_checkpoints(run)):
                return run
        time.sleep(0.02)
    raise TimeoutError(f"no checkpoint of iteration {iteration} in {runs}")


def job_of_torchrun() -> tuple[Any, dict[str, str]]:
    """Returns a store as that of a torchrun without an id, and the variables of the processes that this torchrun starts."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    variables = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "none"}
    return store, variables


def weights(run: Path, iteration: int) -> dict[str, Any]:
    """The weights in the newest checkpoint, as bytes."""
    checkpoint = load(run)
    assert checkpoint["iteration"] == iteration
    return {name: x.numpy().tobytes() for name, x in checkpoint["policies"]["all"]["network"].items()}


def test_a_run_that_is_stopped_and_killed_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    runs, whole = tmp_path / "runs", tmp_path / "whole"
    store, job = job_of_torchrun()
    stopped = start(tmp_path, f"{ENDLESS} --runs {runs}", **job)
    run = wait_for_checkpoint(runs, 5)
    stopped[1].send_signal(signal.SIGTERM)
    (status, output, errors), (other_status, *other_outputs) = finish(stopped)
    assert (status, other_status) == (128 + signal.SIGTERM, 128 + signal.SIGTERM), errors
    assert "on cpu in 2 processes" in output
    assert f"to continue: gpuvec resume {run}" in output
    assert other_outputs == ["", ""], "the first process alone prints"
    record = json.loads((run / "processes.json").read_text())
    assert len(record.pop("job")) == 32
    assert record == {"processes": 2, "shards": 2, "deterministic_shards": True, "sync": "gradient"}

    # The same torchrun starts `train` again: it continues the run. Then one process is killed.
    iteration = load(run)["iteration"]
    words = f"{ENDLESS} --runs {runs}"
    killed = start(tmp_path, words, **job, TORCHELASTIC_RESTART_COUNT="1")
    assert wait_for_checkpoint(runs, iteration + 5) == run
    killed[0].kill()
    (status, *_), (other_status, _, errors) = finish(killed)
    assert (status, other_status) == (-signal.SIGKILL, 75)
    assert "gpuvec: another process of the training is lost: process 0 ended.\n" in errors

    iterations = load(run)["iteration"] + 3
    steps = ["--episodes", "2", "--total-steps", str(iterations * STEPS_PER_ITERATION)]
    assert main(["resume", str(run), *steps]) == 0
    assert main([*TRAIN.split(), *steps, "--runs", str(whole)]) == 0
    assert weights(run, iterations) == weights(next(whole.iterdir()), iterations)
    assert store.check(["gpuvec/run"])


@pytest.mark.slow  # in the gate one process is killed above
def test_processes_killed_at_random_moments_leave_a_run_that_continues_with_any_number_of_processes(tmp_path: Path) -> None:
    """Kills one of two processes 20 times, while they start, train or write a checkpoint; prints the times (with -s)."""
    rng, runs = np.random.default_rng(0), tmp_path / "runs"
    iteration, statuses, times = 0, [], []
    for kill in range(KILLS):
        found = next(iter(runs.iterdir()), None) if runs.is_dir() else None
        can_resume = found is not None and list_checkpoints(found)
        words = f"resume {found} {RESUME} --total-steps 1000000000" if can_resume else f"{ENDLESS} --runs {runs}"
        processes = start(tmp_path, words)
        try:
            if kill % 10:  # otherwise one is killed while they start, and the other waits for it for 50 s
                wait_for_checkpoint(runs, iteration + 5)
            time.sleep(rng.uniform(0.0, 2.0))
            victim = int(rng.integers(2))
            processes[victim].kill()
            begin = time.monotonic()
            processes[1 - victim].wait(90)
            times.append(time.monotonic() - begin)
        finally:
            for process in processes:
                process.kill()
        statuses.append(finish(processes)[1 - victim][0])
        checkpoints = list_checkpoints(next(runs.iterdir())) if runs.is_dir() else []
        iteration = max((int(path.stem.partition("-")[2]) for path in checkpoints), default=0)
    print(f"{KILLS} kills, statuses {Counter(statuses)}, seconds {sorted(round(seconds, 2) for seconds in times)}")
    assert all(statuses), statuses

    (run,) = runs.iterdir()
    iterations = load(run)["iteration"] + 3
    steps = f"--episodes 2 --total-steps {iterations * STEPS_PER_ITERATION}"
    assert main([*f"{TRAIN} {steps} --runs {tmp_path / 'whole'}".split()]) == 0
    expected = weights(next((tmp_path / "whole").iterdir()), iterations)
    copied = shutil.copytree(run, tmp_path / "copy" / run.name)
    assert main(f"resume {run} {steps}".split()) == 0
    assert weights(run, iterations) == expected
    for status, _, errors in finish(start(tmp_path, f"resume {copied} {steps}")):
        assert status == 0, errors
    assert weights(copied, iterations) == expected


@pytest.mark.slow  # `tests/learners/test_heartbeats.py` has its parts
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_hangs_ends_the_others(victim: int, tmp_path: Path) -> None:
    processes = start(tmp_path, f"{ENDLESS} --runs {tmp_path / 'runs'}", run_command_with_quick_heartbeats)
    try:
        wait_for_checkpoint(tmp_path / "runs", 5)
        processes[victim].send_signal(signal.SIGSTOP)
        assert processes[1 - victim].wait(60) == 75
    finally:
        processes[victim].kill()
    (_, _, errors) = finish(processes)[1 - victim]
    assert f"gpuvec: another process of the training is lost: process {victim} has not answered for 1 s.\n" in errors


def test_after_a_loss_the_signal_of_torchrun_does_not_end_the_process_that_reports_it() -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(LostProcessError), deferred_signals():
        raise LostProcessError("process 1 ended")
    signal.raise_signal(signal.SIGTERM)
    assert {number: signal.getsignal(number) for number in handlers} == handlers, "a second signal has its usual effect"
    with pytest.raises(OSError, match="full"), deferred_signals():
        raise OSError("the disk is full")
    assert {number: signal.getsignal(number) for number in handlers} == handlers


# ---- restarts


class Job:
    """A torchrun of one process, which is this one. As a torchrun without an id it calls itself "none"."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runs: Path) -> None:
        self._monkeypatch, self._runs = monkeypatch, runs
        self._store, self.variables = job_of_torchrun()

    def train(self, options: str, restarts: int = 0) -> int:
        """Returns the exit status of `gpuvec train` in a process that this torchrun starts."""
        variables = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": restarts}
        for name, value in {**variables, **self.variables}.items():
            self._monkeypatch.setenv(name, str(value))
        self._monkeypatch.setattr(join, "_stores", [])  # of a process that did not join others before
        return main([*f"{TRAIN} {options} --runs {self._runs}".split()])

    def begin(self, options: str = "") -> Path:
        """Trains five iterations, removes the result as if the process had been killed, and returns the run folder."""
        before = set(self._runs.iterdir()) if self._runs.is_dir() else set()
        assert self.train(f"--total-steps {5 * STEPS_PER_ITERATION} {options}") == 0
        (run,) = set(self._runs.iterdir()) - before
        (run / "result.json").unlink()
        return run


LONGER = f"--total-steps {7 * STEPS_PER_ITERATION}"


def test_a_restart_continues_the_run_of_its_own_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Job(monkeypatch, tmp_path).begin()
    own_job = Job(monkeypatch, tmp_path)
    assert own_job.train("--num-envs 3") == 1  # it fails before it has a run
    assert own_job.train("--env gpuvec/Acrobot-v1 --total-steps 64", restarts=1) == 0
    assert "restarted  no run of this job has a checkpoint: the training begins again" in capsys.readouterr().out
    assert not (other / "result.json").exists()
    own = own_job.begin("--seed 5")
    Job(monkeypatch, tmp_path).begin("--seed 6")  # the newest folder is that of another job
    assert own_job.train(f"--seed 5 {LONGER}", restarts=1) == 0
    assert f"restarted  {own} continues" in capsys.readouterr().out
    assert load(own)["iteration"] == 7
    assert load(other)["iteration"] == 5


def test_a_run_continues_after_restarts_that_wrote_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: RunWriter, checkpoint: Any) -> Path:
        raise RunWriteError("the machine is lost")

    job = Job(monkeypatch, tmp_path)
    run = job.begin()
    for restarts in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(RunWriter, "save", fail)
            assert job.train(LONGER, restarts) == 1
        assert len((run / "metrics.jsonl").read_text().splitlines()) == 7
        assert load(run)["iteration"] == 5
    assert job.train(LONGER, restarts=3) == 0
    assert load(run)["iteration"] == 7
    assert list(tmp_path.iterdir()) == [run]


def test_a_restart_continues_a_run_that_was_killed_after_its_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, job = RunWriter.save, Job(monkeypatch, tmp_path)

    def save_and_fail(run: RunWriter, checkpoint: Any) -> Path:
        save(run, checkpoint)
        raise RunWriteError("the machine is lost")

    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "save", save_and_fail)
        assert job.train(LONGER) == 1
    assert job.train(LONGER, restarts=1) == 0
    (run,) = tmp_path.iterdir()
    assert load(run)["iteration"] == 7


def test_a_process_that_was_not_started_again_continues_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, tmp_path)
    first = job.begin()
    assert job.begin() != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--env gpuvec/Acrobot-v1", 'is a run with env="gpuvec/CartPole-v1", and this training has "gpuvec/Acrobot-v1"'),
        ("--algorithm ppo", 'is a run with algorithm="a2c", and this training has "ppo"'),
        ("--learning-rate 0.5", "is a run with learning_rate=0.003, and this training has 0.5: give the settings of the run"),
        ("--params gravity 5", 'is a run with params={}, and this training has {"gravity": 5}'),
    ],
)
def test_a_restart_with_other_settings_is_refused(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(monkeypatch, tmp_path)
    run = job.begin()
    assert job.train(f"{LONGER} {options}", restarts=1) == 1
    assert f"gpuvec: {run} {message}" in capsys.readouterr().err
    assert load(run)["iteration"] == 5


def test_a_restart_refuses_a_folder_that_another_job_wrote_or_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(monkeypatch, tmp_path)
    run, other = job.begin(), Job(monkeypatch, tmp_path).begin()
    shutil.rmtree(run)
    assert job.train(LONGER, restarts=1) == 1
    assert f"process 0 cannot continue {run}, the run of this job, because this machine has no such" in capsys.readouterr().err
    other.rename(run)
    assert job.train(LONGER, restarts=1) == 1
    assert f"{run} is not the run that this job began: its processes.json has another job" in capsys.readouterr().err


def test_a_restart_with_a_store_that_does_not_know_the_beginning_begins_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(monkeypatch, tmp_path)
    run = job.begin()
    assert Job(monkeypatch, tmp_path).train(LONGER, restarts=1) == 1  # the first process is on another machine
    error = "torchrun started the processes again, and {}: this job cannot know its run. Continue it by `gpuvec resume RUN`"
    assert error.format("its store is not that of their beginning") in capsys.readouterr().err
    job.variables["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    assert job.train(LONGER, restarts=1) == 1
    assert error.format("has no store that outlives them") in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [run]
    assert load(run)["iteration"] == 5


@pytest.mark.slow  # its parts are above
def test_torchrun_without_an_id_restarts_its_own_run(tmp_path: Path) -> None:
    runs, processes = tmp_path / "runs", []

    def start_torchrun(options: str) -> Any:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        _, *words = torchrun_command([*f"{TRAIN} --runs {runs} --total-steps 1000000000 {options}".split()], 1, 1)
        words[words.index("--standalone")] = f"--master-port={port}"
        processes.append(subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        return processes[-1]

    def kill_worker(torchrun: Any) -> None:
        (worker,) = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)

    try:
        first = start_torchrun("")
        other = wait_for_checkpoint(runs, 5)
        first.kill()
        first.wait()
        with RunFolder(other) as folder:  # the process ends when it notices the end of torchrun
            while folder.is_locked():
                time.sleep(0.02)
        iteration = load(other)["iteration"]
        second = start_torchrun("--env gpuvec/Acrobot-v1")
        own = wait_for_checkpoint(runs, 5, "*Acrobot*")
        kill_worker(second)
        wait_for_checkpoint(runs, load(own)["iteration"] + 10, "*Acrobot*")
        assert load(own)["args"]["all"]["env"] == "gpuvec/Acrobot-v1"
        assert load(other)["iteration"] == iteration
        assert len(list(runs.iterdir())) == 2
    finally:
        for process in processes:
            process.terminate()
            process.communicate(timeout=300)


# ---- messages


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, for processes that did not join others before."""
    monkeypatch.setattr(join, "_stores", [])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("rank", "message"),
    [(0, "of 2 processes 1 did not start within 1 s"), (1, "process 1 does not reach the first process at 127.0.0.1:")],
)
def test_a_missing_process_is_named(port: int, monkeypatch: pytest.MonkeyPatch, rank: int, message: str) -> None:
    variables = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ProcessesError, match=message), join.join_processes("cpu", start_seconds=1.0):
        pass


@pytest.mark.parametrize(
    ("local_size", "message"),
    [
        ("1", r"cannot listen at node0:\d+: this machine knows its name node0 as 127.0.1.1, 127.0.1.2, where .* /etc/hosts"),
        ("2", r"processes 1 did not start within 1 s. The first process listens at 127.0.1.1, where .* /etc/hosts"),
        ("", r"processes 1 did not start within 1 s. The first process listens at 127.0.1.1, where .* /etc/hosts"),
    ],
)
def test_a_name_that_only_the_own_machine_reaches_is_refused(
    port: int, monkeypatch: pytest.MonkeyPatch, local_size: str, message: str
) -> None:
    """Debian's /etc/hosts has 127.0.1.1 for the machine's own name."""
    known = socket.getaddrinfo
    addresses = {"node0": ["127.0.1.1", "127.0.1.2"]}

    def resolve(host: str, *args: Any, **kwargs: Any) -> Any:
        return [entry for address in addresses.get(host, [host]) for entry in known(address, *args, **kwargs)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    variables = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "node0", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": local_size}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    if not local_size:
        monkeypatch.delenv("LOCAL_WORLD_SIZE")
    with pytest.raises(ProcessesError, match=message), join.join_processes("cpu", start_seconds=1.0):
        pass


def test_the_store_of_the_first_process_listens_at_its_address_alone(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux has all addresses 127.x.x.x, of which each stands for a network here."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    with join.join_processes("cpu"):
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


def test_gpus_without_nccl_are_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(join, "process_device", lambda setting: "cuda:0")
    monkeypatch.setattr(join.dist, "is_nccl_available", lambda: False)
    message = "several processes on GPUs need NCCL, which this PyTorch does not have; CUDA graphs cannot contain gloo."
    with pytest.raises(ProcessesError, match=message), join.join_processes("cuda"):
        pass


def test_variables_of_torchrun_are_read_and_checked() -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "5", "LOCAL_RANK": "1"}
    assert read_launch(variables) == Launch(1, 2, 1, "host", 5)
    assert read_launch({"MASTER_PORT": "5"}) is None
    for name, value, message in (
        ("RANK", "2", "RANK must be from 0 to WORLD_SIZE - 1"),
        ("WORLD_SIZE", "two", "WORLD_SIZE must be a number, got 'two'"),
    ):
        with pytest.raises(ProcessesError, match=message):
            read_launch({**variables, name: value})
    del variables["MASTER_ADDR"]
    with pytest.raises(ProcessesError, match="MASTER_ADDR are missing: start the processes with torchrun"):
        read_launch(variables)


def test_gpus_start_torchrun() -> None:
    words = torchrun_command(["train", "--gpus", "2"], 2, 3)
    assert words[1:4] == ["-P", "-m", "torch.distributed.run"]
    assert words[4:8] == ["--standalone", "--nproc-per-node=2", "--max-restarts=3", "--no-python"]
    python, *process = python_command("from gpuvec.cli import main; sys.exit(main())", "train", "--gpus", "2")
    assert words[8:] == [python, "-u", *process]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--gpus 2 --device cpu", "--gpus 2 is for GPUs, and the device is cpu. Processes on a CPU are started by `torchrun"),
        ("--gpus -1", "gpus and max_restarts must be at least 0"),
        ("--gpus 1000", "--gpus 1000: "),
        ("--max-restarts 1", "restarts are for gpus, got 0 and 1"),
        ("--device cpu --shards 3", "num_envs must be a multiple of the number of shards, got 128 and 3"),
    ],
)
def test_wrong_numbers_of_processes_are_refused(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *options.split()]) == 1
    assert message in capsys.readouterr().err
