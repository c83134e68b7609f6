"""Tests of the recipes for clusters in examples/cluster: what they start, and that it trains."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuvec.learners.runs.records import PROCESSES, RESULT, parse_json

if shutil.which("bash") is None:
    pytest.skip("no bash", allow_module_level=True)
ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "cluster"
TRAIN = [
    *("--algorithm", "a2c", "--env", "gpuvec/CartPole-v1", "--device", "cpu", "--num-envs", "8", "--num-steps", "8"),
    *("--hidden", "8", "--total-steps", "128", "--episodes", "2"),
]
# Starts the command on each node, which is this machine.
SRUN = """
pids=()
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || exit; done
"""
SCONTROL = """[[ "$1 $2" == "show hostnames" ]] && echo localhost && echo another"""
TORCHRUN = f'exec "{sys.executable}" -m torch.distributed.run "$@"'
PRINT_WORDS = """printf '%s\\n' "$@" """
# The fields of a TrainJob of trainer.kubeflow.org/v1alpha1 that a recipe may have, as Kubeflow Trainer 2.3 documents them.
TRAINER_FIELDS = {"image", "numNodes", "numProcPerNode", "command", "args", "env", "resourcesPerNode"}
POD_FIELDS = {
    "serviceAccountName", "terminationGracePeriodSeconds", "nodeSelector", "affinity", "tolerations", "volumes", "containers",
    "initContainers", "imagePullSecrets", "schedulingGates", "securityContext",
}  # fmt: skip
CONTAINER_FIELDS = {"name", "env", "volumeMounts", "securityContext"}


def start(folder: Path, recipe: str, words: Sequence[str], torchrun: str = TORCHRUN, **variables: str) -> subprocess.Popen[str]:
    """Starts a recipe in a folder, in which SLURM and torchrun are what the test says."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "torchrun": torchrun}.items():
        (commands / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (commands / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}", **variables}
    return subprocess.Popen(
        ["bash", str(RECIPES / recipe), *words],
        cwd=folder,
        env=variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def words_of(process: subprocess.Popen[str]) -> list[str]:
    """The words with which a recipe starts torchrun."""
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return printed.splitlines()


def require_trained(run: Path, processes: int) -> None:
    """Checks that so many processes completed a run, with a shard each."""
    record = parse_json((run / PROCESSES).read_bytes())
    assert (record["processes"], record["shards"]) == (processes, processes)
    assert parse_json((run / RESULT).read_bytes())["ended_by"] == "total_steps"


def slurm_variables(**changes: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "47",
        "SLURM_JOB_NODELIST": "n[0-1]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        **changes,
    }


class TestSlurm:
    def test_it_starts_a_process_for_each_gpu(self, tmp_path: Path) -> None:
        words = words_of(start(tmp_path, "train.slurm", TRAIN, PRINT_WORDS, **slurm_variables(SLURM_JOB_NUM_NODES="1")))
        text = " ".join(words)
        assert text.startswith(
            "--nnodes 1 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint localhost:20047"
        )
        assert text.endswith(f"-m gpuvec train --runs runs/47 --shards 8 {' '.join(TRAIN)}")

    def test_a_requeued_job_continues_its_run(self, tmp_path: Path) -> None:
        run = tmp_path / "runs" / "47" / "first"
        run.mkdir(parents=True)
        for iteration in (50, 100):
            (run / f"checkpoint-{iteration}.pt").touch()
        words = words_of(start(tmp_path, "train.slurm", TRAIN, PRINT_WORDS, **slurm_variables(SLURM_JOB_NUM_NODES="1")))
        assert words[-5:] == ["-m", "gpuvec", "resume", "runs/47/first", "--trust"]

    def test_it_trains_on_two_nodes(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        process = start(
            tmp_path, "train.slurm", TRAIN, **slurm_variables(PROCESSES_PER_NODE="1", SLURM_JOB_ID=str(os.getpid()))
        )
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        (run,) = (tmp_path / "runs" / str(os.getpid())).iterdir()
        require_trained(run, processes=2)

    def test_a_job_without_gpus_says_what_to_set(self, tmp_path: Path) -> None:
        process = start(tmp_path, "train.slurm", TRAIN, PRINT_WORDS, **slurm_variables(SLURM_GPUS_ON_NODE=""))
        assert "this job has no GPUs: set PROCESSES_PER_NODE" in process.communicate(timeout=60)[1]
        assert process.returncode != 0


class TestTwoMachines:
    def test_the_words_are_those_of_the_machine(self, tmp_path: Path) -> None:
        process = start(tmp_path, "two_machines.sh", ["1", "10.0.0.1", "8", *TRAIN], PRINT_WORDS)
        text = " ".join(words_of(process))
        assert text.startswith(
            "--nnodes 2 --node-rank 1 --nproc-per-node 8 --rdzv-backend static --rdzv-endpoint 10.0.0.1:29500"
        )
        assert text.endswith(f"-m gpuvec train --shards 16 {' '.join(TRAIN)}")

    # Processes of two nodes train in the test of SLURM.
    @pytest.mark.slow
    def test_two_machines_train(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        words = ["127.0.0.1", "1", *TRAIN, "--runs", "runs"]
        folders = [tmp_path / "machine-0", tmp_path / "machine-1"]
        for folder in folders:
            folder.mkdir()
        processes = [start(folder, "two_machines.sh", [str(k), *words], PORT=port) for k, folder in enumerate(folders)]
        outputs = [process.communicate(timeout=300) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        (run,) = (folders[0] / "runs").iterdir()
        require_trained(run, processes=2)
        assert not (folders[1] / "runs").exists()

    def test_missing_words_are_refused(self, tmp_path: Path) -> None:
        process = start(tmp_path, "two_machines.sh", ["0"], PRINT_WORDS)
        assert "usage: " in process.communicate(timeout=60)[1]
        assert process.returncode == 2


class TestTrainJob:
    @pytest.fixture
    def job(self) -> Any:
        yaml = pytest.importorskip("yaml", reason="extra `dev`")
        return yaml.safe_load((RECIPES / "trainjob.yaml").read_text())

    def test_it_has_documented_fields_alone(self, job: Any) -> None:
        assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
        assert set(job["spec"]) == {"runtimeRef", "trainer", "runtimePatches"}
        assert set(job["spec"]["trainer"]) <= TRAINER_FIELDS
        (pod,) = pods_of(job)
        assert set(pod) <= POD_FIELDS
        assert all(set(container) <= CONTAINER_FIELDS for container in pod["containers"])
        mounts = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}

    def test_there_is_a_gpu_and_a_shard_for_each_process(self, job: Any) -> None:
        trainer = job["spec"]["trainer"]
        options = dict(word.removeprefix("--").split("=") for word in trainer["args"][1:])
        processes = trainer["numNodes"] * trainer["numProcPerNode"]
        assert int(trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"]) == trainer["numProcPerNode"]
        assert int(options["shards"]) == processes
        assert int(options["num-envs"]) % processes == 0

    def test_its_words_are_a_training(self, job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("tyro")
        from gpuvec.cli import main, train_command

        calls: list[Any] = []
        monkeypatch.setattr(train_command, "run_training", lambda *arguments: calls.append(arguments) or 0)
        assert main(job["spec"]["trainer"]["args"]) == 0
        ((policies, *_, sharding),) = calls
        assert (policies["all"].num_envs, sharding.shards) == (524_288, 16)


def pods_of(job: Any) -> Iterator[Any]:
    """The specifications of pods in a TrainJob."""
    for patch in job["spec"]["runtimePatches"]:
        for replicated in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            assert replicated["name"] == "node"
            yield replicated["template"]["spec"]["template"]["spec"]
