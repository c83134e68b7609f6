"""The block in which a GPU is current, with a driver that records which contexts are created and current."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

driver = pytest.importorskip("cuda.bindings.driver")

from gpuvec.engine.backends import device as devices
from gpuvec.errors import DeviceError

SUCCESS, INVALID_DEVICE = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_DEVICE


class Contexts:
    """The contexts of a machine with two GPUs, which are named by them.

    Attributes:
        created: the GPUs that have one.
        stack: the current one is the last; empty if none is current.
    """

    def __init__(self) -> None:
        self.created: set[int] = set()
        self.stack: list[int] = []

    def get(self, ordinal: int) -> tuple[object, int]:
        """Returns the status and the handle of a GPU."""
        return (SUCCESS if ordinal < 2 else INVALID_DEVICE), ordinal

    def retain(self, device: int) -> tuple[object, int]:
        """Returns the status and the primary context of a GPU."""
        self.created.add(device)
        return SUCCESS, device

    def pop(self) -> tuple[object, int]:
        """Makes the previous context current."""
        return SUCCESS, self.stack.pop()


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Contexts]:
    contexts = Contexts()
    calls = {
        "cuDeviceGet": contexts.get, "cuDevicePrimaryCtxRetain": contexts.retain, "cuCtxPushCurrent": contexts.stack.append,
        "cuCtxPopCurrent": contexts.pop,
    }  # fmt: skip
    for name, call in calls.items():
        monkeypatch.setattr(driver, name, call)
    devices._current_gpu.cache_clear()
    yield contexts
    devices._current_gpu.cache_clear()


def test_a_gpu_is_current_in_the_block_alone_and_no_other_one_gets_a_context(contexts: Contexts) -> None:
    gpu = devices.Device("cuda", 1)
    with gpu.current():
        assert contexts.stack == [1]
        with suppress(KeyError), gpu.current():
            assert contexts.stack == [1, 1]
            raise KeyError
        assert contexts.stack == [1]
    assert contexts.stack == []
    assert contexts.created == {1}
    contexts.stack.append(0)  # what another library made current
    with gpu.current():
        assert contexts.stack == [0, 1]
    assert contexts.stack == [0]


def test_a_gpu_that_the_driver_refuses_is_named(contexts: Contexts) -> None:
    with pytest.raises(DeviceError, match=r"cuda:2 cannot be used: .*INVALID_DEVICE"):
        devices.Device("cuda", 2).current()
    assert contexts.created == set()
