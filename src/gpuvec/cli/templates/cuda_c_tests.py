"""The functions in CUDA C++ do what those in Python do."""

import pytest


def test_a_gpu_plays_the_same_with_them(capfd):
    """Without a GPU they are compiled, by `check_env`, and not run."""
    cli = pytest.importorskip("gpuvec.cli")  # of gpuvec[train]
    status = cli.main(["check", "my_game:my_game/MyGame-v0", "--backends", "cuda-c"])
    out, err = capfd.readouterr()
    if "was asked for" in err:
        pytest.skip(err)
    assert status == 0, out + err
