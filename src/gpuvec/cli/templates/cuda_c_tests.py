"""The functions in CUDA C++ do what those in Python do."""

import pytest


@pytest.mark.parametrize("target", ["cuda-c-cpu", "cuda-c"], ids=["cpu", "gpu"])
def test_they_do_what_python_does(target, capfd):
    """On a CPU by its C++ compiler, and on a GPU. Without a GPU they are compiled for one, by `check_env`, and not run."""
    cli = pytest.importorskip("gpuvec.cli")  # of gpuvec[train]
    status = cli.main(["check", "my_game:my_game/MyGame-v0", "--targets", target])
    out, err = capfd.readouterr()
    if "is not available" in err:
        pytest.skip(err)
    assert status == 0, out + err
