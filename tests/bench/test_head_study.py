"""The study of the head, on invented features."""

import torch

from daedl import Classifier
from daedl.networks import Backbone
from daedl_bench.studies import head


def test_both_heads_see_the_last_block_alone():
    """Classes differ in the last block for one set of features, in the first part for the other."""
    model = Classifier(Backbone("efficientnet-lite0", 3, 32), "edl+")
    first, *_, last = model.network.parts
    labels = torch.arange(150) % 3
    for columns, separable in ((slice(-last, None), True), (slice(first), False)):
        rows = torch.randn(
            150, sum(model.network.parts), generator=torch.Generator().manual_seed(0)
        )
        rows[:, columns] += 3 * torch.randn(3, last)[labels][:, : last if separable else first]
        accuracies = head.accuracies(model, rows, labels, seed=0)
        assert set(accuracies) == {"edl+", "logistic regression"}
        assert all((accuracy > 0.9) == separable for accuracy in accuracies.values())
