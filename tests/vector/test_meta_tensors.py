"""Tensors of torch that have no memory to read: they are refused wherever an array comes in."""

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
def tensor(request):
    """(a function of a dtype, the message)."""
    return TENSORS[request.param]


@pytest.mark.parametrize("output", ["torch", None])
def test_they_are_refused_and_nothing_has_happened(device, tensor, output):
    env = make("tests/Counter-v0", E, device=device, **({"output": output} if output else {}))
    env.reset(seed=0)
    saved = env.state_dict()
    made, message = tensor
    changed = {**saved, "buffers": {**saved["buffers"], "start": made(torch.int32)}}
    with pytest.raises((TypeError, ValueError), match=message if output == "torch" else "meta|dense|CPU"):
        env.step(made(torch.int64))
    for call in (
        lambda: env.reset(options={"reset_mask": made(torch.bool)}),
        lambda: env.set_state({"count": made(torch.float32)}),
        lambda: env.set_state({"count": 1.0}, made(torch.bool)),
        lambda: env.set_reset_pool({"count": made(torch.float32)}),
        lambda: env.load_state_dict(changed),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    if output == "torch":
        with pytest.raises(TypeError, match=message):
            env.step(torch.ones(E, dtype=torch.int64, device=env.device), out={"reward": made(torch.float32)})
    after = env.state_dict()["buffers"]
    for name, values in saved["buffers"].items():
        assert (values == after[name]).all()
    env.close()
