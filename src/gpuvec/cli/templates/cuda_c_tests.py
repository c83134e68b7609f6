"""The functions in CUDA C++ return the same results as those in Python."""

import pytest


def test_they_return_the_results_of_python_on_a_gpu(capfd):
    """`check_env` compares them on the CPU, which runs them with its C++ compiler, and compiles them for a GPU."""
    cli = pytest.importorskip("gpuvec.cli")  # needs the extra train
    status = cli.main(["check", "my_game:my_game/MyGame-v0", "--targets", "cuda-c"])
    out, err = capfd.readouterr()
    if "is not available" in err:
        pytest.skip(err)
    assert status == 0, out + err
