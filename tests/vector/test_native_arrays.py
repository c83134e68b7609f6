"""Every function that takes an array refuses those without readable memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.counter_env import make

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode

E = 3


def fake(dtype, device, shape=(E,)):
    with FakeTensorMode():
        return torch.ones(shape, dtype=dtype, device=device)


def freed(dtype, device, shape=(E,)):
    tensor = torch.ones(shape, dtype=dtype, device=device)
    tensor.untyped_storage().resize_(0)
    return tensor


def view_of_freed(dtype, device):
    """Its address is not null but its offset, which lies far above the first page."""
    tensor = torch.ones(2**20 + E, dtype=dtype, device=device)
    view = tensor[2**20 :]
    tensor.untyped_storage().resize_(0)
    return view


def strided_and_freed(dtype, device):
    tensor = torch.ones(2 * E, dtype=dtype, device=device)
    view = tensor[::2]
    tensor.untyped_storage().resize_(0)
    return view


def too_small(dtype, device):
    tensor = torch.ones(E, dtype=dtype, device=device)
    tensor.untyped_storage().resize_(1)
    return tensor


def view_of_shrunk(dtype, device):
    """The storage has as many bytes as the view, but not at its offset."""
    tensor = torch.ones(100, dtype=dtype, device=device)
    view = tensor[50 : 50 + E]
    tensor.untyped_storage().resize_(view.nbytes)
    return view


NO_MEMORY = "has no memory for its 3 elements"
TENSORS = {
    "meta": (lambda dtype, device: torch.zeros(E, dtype=dtype, device="meta"), 'on torch\'s "meta" device holds no numbers'),
    "sparse": (
        lambda dtype, device: torch.ones(E, dtype=dtype, device=device).to_sparse(), r"layout sparse_coo .* to_dense\(\)",
    ),
    "nested": (
        lambda dtype, device: torch.nested.as_nested_tensor([torch.ones(1, dtype=dtype, device=device)] * E), "layout nested",
    ),
    "fake": (fake, NO_MEMORY),
    "freed": (freed, NO_MEMORY),
    "view of freed": (view_of_freed, NO_MEMORY),
    "strided and freed": (strided_and_freed, NO_MEMORY),
    "too small": (too_small, NO_MEMORY),
    "view of shrunk": (view_of_shrunk, NO_MEMORY),
    "functional": (lambda dtype, device: torch._to_functional_tensor(torch.ones(E, dtype=dtype, device=device)), NO_MEMORY),
    "zero": (lambda dtype, device: torch._efficientzerotensor((E,), dtype=dtype, device=device), NO_MEMORY),
}  # fmt: skip


@pytest.fixture(params=TENSORS)
def tensor_case(request):
    """A function that makes a tensor of a dtype on a device, and the expected message."""
    return TENSORS[request.param]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("output", ["torch", None])
def test_tensors_without_memory_raise_and_change_nothing(device, tensor_case, output):
    env = make("tests/Counter-v0", E, device=device, **({"output": output} if output else {}))
    env.reset(seed=0)
    saved = env.state_dict()
    make_tensor, message = tensor_case

    def tensor(dtype):
        return make_tensor(dtype, env.device)

    changed = {**saved, "buffers": {**saved["buffers"], "start": tensor(torch.int32)}}
    with pytest.raises((TypeError, ValueError), match=message if output == "torch" else f"meta|dense|CPU|{message}"):
        env.step(tensor(torch.int64))
    for call in (
        lambda: env.reset(options={"reset_mask": tensor(torch.bool)}),
        lambda: env.set_state({"count": tensor(torch.float32)}),
        lambda: env.set_state({"count": 1.0}, tensor(torch.bool)),
        lambda: env.set_reset_pool({"count": tensor(torch.float32)}),
        lambda: env.load_state_dict(changed),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    if output == "torch":
        with pytest.raises(TypeError, match=message):
            env.step(torch.ones(E, dtype=torch.int64, device=env.device), out={"reward": tensor(torch.float32)})
        for make_actions in (fake, freed):
            with pytest.raises(TypeError, match=NO_MEMORY):
                env.rollout(1, make_actions(torch.int64, env.device, (1, E)))
    after = env.state_dict()["buffers"]
    for name, values in saved["buffers"].items():
        assert (values == after[name]).all()
    env.close()


def test_tensors_that_hold_numbers_leave_the_warning_filters_alone(monkeypatch):
    """A change of the filters is not safe in several threads, and makes each later warning be looked up again."""
    actions = {"torch": torch.zeros(2 * E, dtype=torch.int64)[::2], "numpy": torch.zeros(E, dtype=torch.int64)}
    envs = {output: make("tests/Counter-v0", E, output=output) for output in actions}
    for env in envs.values():
        env.reset(seed=0)
    monkeypatch.setattr("gpuvec.vector.native_arrays.warnings", None)
    for output, env in envs.items():
        env.step(actions[output])
        env.set_state({"count": torch.zeros(2 * E)[::2]})
        env.close()


class FreedMemory:
    """An object with DLPack's protocol whose memory has the address 0."""

    def __init__(self, dtype) -> None:
        self._tensor = freed(dtype, "cpu")

    def __dlpack__(self, **kwargs):
        return self._tensor.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


@pytest.mark.parametrize("output", ["torch", "numpy", "dlpack"])
def test_dlpack_objects_without_memory_raise(output):
    env = make("tests/Counter-v0", E, output=output)
    env.reset(seed=0)
    for call in (
        lambda: env.step(FreedMemory(torch.int64)),
        lambda: env.set_state({"count": FreedMemory(torch.float32)}),
    ):
        with pytest.raises(TypeError, match=r"a FreedMemory was given that cannot be read as an array \(it has no memory\)"):
            call()
    env.close()


def test_arrays_of_cupy_without_memory_raise(gpu):
    import cupy

    env = make("tests/Counter-v0", E, device=gpu, output="cupy")
    env.reset(seed=0)

    def array(dtype):
        memory = cupy.cuda.UnownedMemory(0, 8 * E, None)
        return cupy.ndarray((E,), dtype, cupy.cuda.MemoryPointer(memory, 0))

    reward = array(np.float32)
    for call in (
        lambda: env.step(array(np.int64)),
        lambda: env.step(cupy.ones(E, np.int64), out={"reward": reward}),
        lambda: env.set_state({"count": array(np.float32)}),
        lambda: env.set_state({"count": 1.0}, array(np.bool_)),
        lambda: env.reset(options={"reset_mask": array(np.bool_)}),
    ):
        with pytest.raises(TypeError, match=r"of shape \(3,\) was given that has no memory"):
            call()
    env.close()


@pytest.mark.parametrize("output", ["jax", "numpy"])
def test_deleted_arrays_of_jax_raise(output):
    jax = pytest.importorskip("jax")
    env = make("tests/Counter-v0", E, output=output)
    env.reset(seed=0)
    deleted = jax.numpy.ones(E, np.int32)
    deleted.delete()
    for call in (lambda: env.step(deleted), lambda: env.set_state({"count": deleted})):
        with pytest.raises(TypeError, match=r"ArrayImpl was given that cannot be read as an array \(.*deleted"):
            call()
    env.close()


def test_negative_views_are_read_as_their_values(device):
    """`torch._neg_view` and the imaginary part of a conjugate share memory with the numbers of the other sign."""
    values = torch.tensor([0.25, -0.5, 1.0], device="cuda" if device == "cuda" else "cpu")
    actions = torch.complex(values, values).conj().imag[:, None]
    assert actions.is_neg()
    states = []
    for action in (actions, -values[:, None]):
        env = make("gpuvec/Pendulum-v1", E, device=device, output="torch")
        env.reset(seed=0)
        env.step(action)
        states.append(env.get_state())
        env.set_state({"angular_velocity" if "angular_velocity" in states[0] else next(iter(states[0])): action[:, 0]})
        states[-1] |= {f"set {name}": array for name, array in env.get_state().items()}
        env.close()
    for name, array in states[0].items():
        assert torch.equal(array, states[1][name]), name
