"""The functions in CUDA C++ return the same results as those in Python."""

import pytest


@pytest.mark.parametrize("target", ["cuda-c-cpu", "cuda-c"], ids=["cpu", "gpu"])
def test_they_return_the_results_of_python(target, capfd):
    """The CPU runs them with its C++ compiler. Without a GPU, `check_env` only compiles them for one."""
    cli = pytest.importorskip("gpuvec.cli")  # part of gpuvec[train]
    status = cli.main(["check", "my_game:my_game/MyGame-v0", "--targets", target])
    out, err = capfd.readouterr()
    if "is not available" in err:
        pytest.skip(err)
    assert status == 0, out + err
