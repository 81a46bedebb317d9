"""Batches of a dataset in memory against PyTorch's DataLoader."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from daedl.data.rows import Prepared, RowLoader, Rows


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("own_generator", [False, True])
def test_batches_and_random_numbers_are_those_of_a_loader(shuffle, drop_last, own_generator):
    parts = torch.randn(23, 3), torch.arange(23)
    seen = []
    for kind, dataset in ((DataLoader, TensorDataset(*parts)), (RowLoader, Rows(*parts))):
        torch.manual_seed(5)
        generator = torch.Generator().manual_seed(7) if own_generator else None
        loader = kind(dataset, 5, shuffle, drop_last=drop_last, generator=generator)
        # Random numbers between batches, such as those of dropout.
        batches = [(*batch, torch.rand(())) for _ in range(2) for batch in loader]
        assert len(batches) == 2 * len(loader)
        seen.append([*batches, (torch.rand(()),)])
    for one, other in zip(*seen, strict=True):
        assert all(map(torch.equal, one, other))


def test_prepared_batches_have_the_same_order():
    inputs, labels = torch.arange(23.0)[:, None], torch.arange(23)
    loader = RowLoader(Rows(inputs, labels), 5, shuffle=True)
    prepared = loader.prepared(lambda parts: Prepared(parts[0] + 100, parts[1]))
    torch.manual_seed(0)
    plain = list(loader)
    torch.manual_seed(0)
    for (x, y), batch in zip(plain, prepared, strict=True):
        assert isinstance(batch, Prepared)
        assert torch.equal(batch.inputs, x + 100)
        assert torch.equal(batch.targets, y)
        assert batch.weights is None
