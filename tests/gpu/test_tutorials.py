"""Tutorials on a GPU, each as the script that it is; on a CPU building the documentation runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = [file for file in sorted((ROOT / "docs" / "tutorials").glob("*.py")) if file.stem != "package"]  # which needs pip


@pytest.mark.gpu
@pytest.mark.parametrize("file", TUTORIALS, ids=lambda file: file.stem)
def test_a_tutorial_holds_what_it_states(file: Path, gpu: str) -> None:
    sources = os.pathsep.join([str(ROOT / "src"), str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(file)], env={**os.environ, "PYTHONPATH": sources}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
