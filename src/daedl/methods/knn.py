"""Distance to the k-th nearest training sample."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.checks import require_whole
from daedl.methods.post_hoc import PostHoc, gather_rows
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# Distances held at a time; bounds the working memory to 64 MB in float32 (chosen).
_ELEMENTS = 2**24


def nearest(
    features: Tensor, stored: Tensor, squares: Tensor, k: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks (B, H) of `features`, each with the indices (B, k) of its nearest in `stored`, nearest first.

    `squares` (N,) are the squared lengths of `stored` (N, H).
    """
    for block in torch.split(features, max(1, _ELEMENTS // len(stored))):
        # ‖s − f‖² = ‖s‖² − 2 s·f + ‖f‖², without the last term, which is the same for all neighbours.
        order = torch.addmm(squares, block, stored.T, alpha=-2)
        yield block, order.topk(k, largest=False).indices


def distance(features: Tensor, stored: Tensor, indices: Tensor) -> Tensor:
    """‖f − s‖ (B,) of features (B, H) to those of `stored` that `indices` (B,) tell.

    The difference of squares in `nearest` only finds the neighbour: as a distance it would lack digits.
    """
    distances: Tensor = torch.linalg.vector_norm(features - stored[indices], dim=1)
    return distances


class Neighbours(nn.Module):
    """Training features of length 1, and the distance of others to the k-th nearest of them."""

    stored: Tensor
    squares: Tensor

    def __init__(self, stored: Tensor, k: int) -> None:
        super().__init__()
        if k > len(stored):
            raise ValueError(
                f"k is {k} but there are {len(stored)} training features to be neighbours; expected "
                "no more neighbours than those: lower k, or keep more samples"
            )
        self.k = k
        self.register_buffer("stored", stored)
        self.register_buffer("squares", stored.square().sum(1), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Distances (B,) of features (B, H)."""
        # First, as half precision has no number small enough to guard features of length 0.
        normalized = F.normalize(features.to(self.stored), dim=1)
        found = nearest(normalized, self.stored, self.squares, self.k)
        distances = [distance(block, self.stored, indices[:, -1]) for block, indices in found]
        return torch.cat(distances)

    def settings(self) -> dict[str, Any]:
        """What, beside the tensors of `state_dict()`, rebuilds this; JSON-able."""
        return {"k": self.k}


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours(PostHoc):
    """Epistemic: ‖f/‖f‖ − f₍ₖ₎/‖f₍ₖ₎‖‖, f₍ₖ₎ the k-th nearest of the training features; p = softmax(z).

    Attributes:
        k: published as 50 for CIFAR-10 and 1000 for ImageNet, chosen there by validation.
        samples: training features to keep, drawn at random; None for all, as published for CIFAR-10.
        seed: of that draw.
    """

    name = "knn"
    paper = "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022"
    extra_cost = "one pass over the training data"
    caveats = (
        "The model file holds every training feature (48,000 of 576 are 111 MB), and each prediction "
        "is compared with all of them; `samples` keeps fewer, for which a smaller k is right."
    )

    k: int = 50
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("k", self.k, 1, "50 as published for CIFAR-10")
        require_whole("seed", self.seed, 0, "0")
        if self.samples is not None:
            require_whole("samples", self.samples, self.k, "None for all, or at least k")

    def fit(self, outputs: Outputs, targets: Tensor) -> Neighbours:
        """Keep the training features, or a random part of them."""
        del targets
        features = gather_rows(F.normalize(outputs.features.float(), dim=1))
        if self.samples is not None:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(len(features), generator=generator)
            features = features[order[: self.samples].to(features.device)]
        return Neighbours(features, self.k)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z), and the distance to the k-th nearest training feature."""
        distance: Tensor = self.require_fitted(fitted)(outputs.features)
        return Prediction.from_probs(outputs.logits.softmax(-1), distance.to(outputs.logits))

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Neighbours:
        """The training features from a model file."""
        return Neighbours(tensors["stored"], settings["k"])
