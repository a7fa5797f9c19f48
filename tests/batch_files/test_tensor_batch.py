"""A batch of tensors crosses to another process in one block, whatever tensors it holds."""

import pickle

import pytest

torch = pytest.importorskip("torch")

from ballsbins.batch_files import torch_dataset  # noqa: E402
from ballsbins.batch_files.torch_dataset import TensorBatch  # noqa: E402

BATCH = TensorBatch(
    {
        "flags": torch.tensor([True, False, True]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "half": torch.arange(3, dtype=torch.float16),
        "text": ["a", "b"],
        "long": torch.arange(7),
        "matrix": torch.arange(12, dtype=torch.float32).reshape(3, 4),
        "transposed": torch.arange(12, dtype=torch.int32).reshape(3, 4).T,
        "empty": torch.empty(0, 4, dtype=torch.int16),
        "number": torch.tensor(2.5),
        "brain": torch.arange(3).to(torch.bfloat16),  # NumPy has no such type
        "learned": torch.ones(2, requires_grad=True),
    }
)


@pytest.mark.parametrize("piped", [True, False])
def test_everything_arrives(piped, monkeypatch):
    if not piped:
        monkeypatch.setattr(torch_dataset, "_PIPED", 0)
    made, arguments = BATCH.__reduce__()
    assert isinstance(arguments[0], bytearray if piped else torch.Tensor)
    for again in (made(*arguments), pickle.loads(pickle.dumps(BATCH))):
        assert isinstance(again, TensorBatch)
        assert list(again) == list(BATCH)
        assert again["text"] == BATCH["text"]
        for name, value in BATCH.items():
            if name != "text":
                assert (again[name].dtype, again[name].shape) == (value.dtype, value.shape), name
                assert torch.equal(again[name], value), name
                assert again[name].data_ptr() % again[name].element_size() == 0, name


def test_nothing_is_as_good_as_something():
    assert pickle.loads(pickle.dumps(TensorBatch())) == {}
    (empty,) = pickle.loads(pickle.dumps(TensorBatch(x=torch.empty(0)))).values()
    assert empty.shape == (0,)


def test_a_change_of_one_tensor_is_no_change_of_the_others():
    """Autograd refuses to go back through a tensor that was changed since it was used."""
    again = pickle.loads(pickle.dumps(TensorBatch(x=torch.ones(3), y=torch.ones(3))))
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * again["x"]).sum()
    again["y"].zero_()
    loss.backward()
    assert weight.grad.tolist() == [1.0, 1.0, 1.0]
    assert again["x"].tolist() == [1.0, 1.0, 1.0]
