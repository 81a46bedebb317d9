"""What the tests share: one thread, so that they neither depend on nor crowd the machine."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def blobs():
    """Three classes of 4-dimensional features, unequal in size, spread and shape."""
    generator = torch.Generator().manual_seed(0)
    features, targets = [], []
    for c, count in enumerate((400, 150, 60)):
        mixing = torch.randn(4, 4, generator=generator)
        center = 3 * torch.randn(4, generator=generator)
        features.append(torch.randn(count, 4, generator=generator) @ mixing + center)
        targets.append(torch.full((count,), c))
    order = torch.randperm(610, generator=generator)
    return torch.cat(features)[order], torch.cat(targets)[order]


class Interrupting:
    """Batches that end in an exception after a number of them."""

    def __init__(self, batches, after):
        self.batches, self.left = batches, after

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield batch


@pytest.fixture(scope="session")
def interrupting():
    """Wraps batches so that training ends as by Ctrl-C: `interrupting(batches, after)`."""
    return Interrupting
