"""Every function that takes an array refuses tensors of torch without readable memory."""

from __future__ import annotations

import pytest
from tests.support.counter_env import make

torch = pytest.importorskip("torch")

E = 3
TENSORS = {
    "meta": (lambda dtype: torch.zeros(E, dtype=dtype, device="meta"), 'on torch\'s "meta" device holds no numbers'),
    "sparse": (lambda dtype: torch.ones(E, dtype=dtype).to_sparse(), r"layout sparse_coo .* to_dense\(\)"),
}


@pytest.fixture(params=TENSORS)
def tensor_case(request):
    """A function that makes a tensor of a dtype, and the expected message."""
    return TENSORS[request.param]


@pytest.mark.parametrize("output", ["torch", None])
def test_tensors_without_memory_raise_and_change_nothing(device, tensor_case, output):
    env = make("tests/Counter-v0", E, device=device, **({"output": output} if output else {}))
    env.reset(seed=0)
    saved = env.state_dict()
    make_tensor, message = tensor_case
    changed = {**saved, "buffers": {**saved["buffers"], "start": make_tensor(torch.int32)}}
    with pytest.raises((TypeError, ValueError), match=message if output == "torch" else "meta|dense|CPU"):
        env.step(make_tensor(torch.int64))
    for call in (
        lambda: env.reset(options={"reset_mask": make_tensor(torch.bool)}),
        lambda: env.set_state({"count": make_tensor(torch.float32)}),
        lambda: env.set_state({"count": 1.0}, make_tensor(torch.bool)),
        lambda: env.set_reset_pool({"count": make_tensor(torch.float32)}),
        lambda: env.load_state_dict(changed),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    if output == "torch":
        with pytest.raises(TypeError, match=message):
            env.step(torch.ones(E, dtype=torch.int64, device=env.device), out={"reward": make_tensor(torch.float32)})
    after = env.state_dict()["buffers"]
    for name, values in saved["buffers"].items():
        assert (values == after[name]).all()
    env.close()
