"""Steps without Fabric are those through Fabric, and tables in memory train like other batches."""

import copy
from functools import partial

import pytest
import torch
from lightning_fabric import Fabric
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import daedl
from daedl.networks import MLP
from daedl.training.steps import PlainSteps, Steps


@pytest.mark.parametrize("clip", [None, 1e-3, 0.5, 1e3])
def test_plain_steps_equal_those_of_fabric(clip):
    torch.manual_seed(0)
    first = MLP(4, 3, (8,))
    inputs, labels = torch.randn(6, 32, 4), torch.randint(3, (6, 32))
    trained = []
    for kind in (Steps, PlainSteps):
        fabric = Fabric(accelerator="cpu", devices=1)
        network = copy.deepcopy(first)
        bare = AdamW(network.parameters(), lr=0.01)
        scheduler = OneCycleLR(bare, 0.01, total_steps=6)
        wrapped, optimizer = fabric.setup(network, bare)
        own = (bare,) if kind is PlainSteps else ()
        steps = kind(fabric, wrapped, optimizer, scheduler, clip, *own)
        for x, y in zip(inputs, labels, strict=True):
            steps.clear()
            steps.backward(torch.nn.functional.cross_entropy(network(x).logits, y))
            steps.step()
        trained.append(network.state_dict())
    for name, value in trained[0].items():
        torch.testing.assert_close(value, trained[1][name], rtol=1e-6, atol=1e-7)


def test_infinite_gradients_are_rejected_when_clipped():
    weight = torch.zeros(2, requires_grad=True)
    bare = torch.optim.SGD([weight], lr=0.1)
    scheduler = OneCycleLR(bare, 0.1, total_steps=2)
    steps = PlainSteps(Fabric(accelerator="cpu"), None, bare, scheduler, 1.0, bare)
    with pytest.raises(RuntimeError, match="non-finite"):
        steps.backward(weight.sqrt().sum())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["classifier", "regressor"])
def test_a_table_in_memory_trains_like_a_loader(task, weighted):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 3, generator=generator, dtype=torch.float64) * 5 + 7
    y = (x[:, 0] > 7).long() if task == "classifier" else x[:, 0] + x[:, 1]
    weights = (torch.rand(90, generator=generator),) if weighted else ()
    x = x.float() if task == "classifier" else x
    loader = DataLoader(TensorDataset(x, y, *weights), 32, shuffle=True)
    build = partial(MLP, 3, 2 if task == "classifier" else 1, (8,))
    trained = []
    for data in ((x, y, *weights), loader):
        torch.manual_seed(0)
        model = daedl.Classifier(build()) if task == "classifier" else daedl.Regressor(build())
        options = {"class_weights": "balanced"} if task == "classifier" else {}
        daedl.fit(
            model, data, max_epochs=3, batch_size=32, accelerator="cpu", progress=False, **options
        )
        trained.append(model.network.state_dict())
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name]), name
