"""Retrofit: the loss of its network."""

import pytest
import torch

from daedl.methods import METHODS, Retrofit
from daedl.outputs import Outputs


@pytest.mark.parametrize("training", ["softmax", "logitnorm"])
def test_it_trains_like_the_named_method_and_shares_its_network(training: str) -> None:
    outputs = Outputs(torch.zeros(4, 2), torch.randn(4, 3, generator=torch.manual_seed(0)))
    targets = torch.tensor([0, 1, 2, 0])
    method, trained = Retrofit(training=training), METHODS[training]()
    assert method.training_method() == trained
    assert torch.equal(method.loss(outputs, targets, 0), trained.loss(outputs, targets, 0))


def test_an_unknown_training_is_rejected() -> None:
    with pytest.raises(ValueError, match="training"):
        Retrofit(training="logit-norm")


def test_keys_of_earlier_figures_remain() -> None:
    assert "training" not in Retrofit().arguments()
    assert Retrofit(training="logitnorm").arguments()["training"] == "logitnorm"
