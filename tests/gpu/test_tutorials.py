"""Every tutorial runs as a script on a GPU; on a CPU the build of the documentation runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = [file for file in sorted((ROOT / "docs" / "tutorials").glob("*.py")) if file.stem != "package"]  # needs pip


@pytest.mark.gpu
@pytest.mark.parametrize("file", TUTORIALS, ids=lambda file: file.stem)
def test_tutorial_runs(file: Path, gpu: str) -> None:
    if file.stem == "lightning_trainer":
        pytest.importorskip("lightning", reason="needs PyTorch Lightning: extra `lightning`")
    sources = os.pathsep.join([str(ROOT / "src"), str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        [sys.executable, str(file)], env={**os.environ, "PYTHONPATH": sources}, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
