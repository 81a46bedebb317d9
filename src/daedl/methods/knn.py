"""Distance to the k-th nearest training feature."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from daedl.checks import Count, Whole, require_whole
from daedl.methods.fitted import Fitted
from daedl.methods.post_hoc import PostHoc, gather_rows
from daedl.outputs import Outputs

# Distances per block; limits the working memory to 64 MB in float32 (chosen).
_ELEMENTS = 2**24


def nearest(
    features: Tensor, stored: Tensor, squares: Tensor, k: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks (B, H) of `features` with the indices (B, k) of their k nearest rows of `stored`.

    Indices are sorted by distance. `squares` (N,) are the squared norms of `stored` (N, H).
    """
    for block in torch.split(features, max(1, _ELEMENTS // len(stored))):
        # ‖s − f‖² = ‖s‖² − 2 s·f + ‖f‖²; the last term doesn't change the order.
        order = torch.addmm(squares, block, stored.T, alpha=-2)
        yield block, order.topk(k, largest=False).indices


def distance(features: Tensor, stored: Tensor, indices: Tensor) -> Tensor:
    """Distances ‖f − stored[indices]‖ (B,) of features (B, H), with indices (B,).

    The expanded square in `nearest` loses digits to cancellation, so it only ranks neighbours.
    """
    distances: Tensor = torch.linalg.vector_norm(features - stored[indices], dim=1)
    return distances


class Neighbours(Fitted):
    """L2-normalised training features; computes distances to the k-th nearest."""

    stored: Tensor
    k: int
    squares: Tensor

    def __init__(self, stored: Tensor, k: int) -> None:
        super().__init__(stored=stored, k=k)
        if k > len(stored):
            raise ValueError(
                f"k is {k} but there are {len(stored)} training features; expected k of at most "
                "that number: lower k, or keep more samples"
            )
        self.register_buffer("squares", stored.square().sum(1), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Distances (B,) of features (B, H)."""
        # Cast before normalising: the epsilon of `normalize` underflows in half precision.
        normalized = F.normalize(features.to(self.stored), dim=1)
        blocks = nearest(normalized, self.stored, self.squares, self.k)
        distances = [distance(block, self.stored, indices[:, -1]) for block, indices in blocks]
        return torch.cat(distances)


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours(PostHoc):
    """Epistemic: ‖f/‖f‖ − f₍ₖ₎/‖f₍ₖ₎‖‖, f₍ₖ₎ the k-th nearest training feature; p = softmax(z).

    Attributes:
        k: published as 50 for CIFAR-10 and 1000 for ImageNet, selected by validation.
        samples: size of the random subset of training features to keep; None for all, as published
            for CIFAR-10.
        seed: seed of that subset.
    """

    name = "knn"
    title = "kNN distance"
    paper = "Sun et al., Out-of-Distribution Detection with Deep Nearest Neighbors, ICML 2022"
    state = Neighbours
    extra_cost = "one pass over the training data"
    caveats = (
        "The model file contains all training features (48,000 x 576: 111 MB), and every prediction "
        "is compared with all of them; `samples` keeps a subset, which needs a smaller k."
    )

    k: Count = 50
    samples: Count | None = None
    seed: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples is not None:
            require_whole("samples", self.samples, self.k, "None for all, or at least k")

    def fit(self, outputs: Outputs, targets: Tensor) -> Neighbours:
        features = gather_rows(F.normalize(outputs.features.float(), dim=1))
        if self.samples is not None:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(len(features), generator=generator)
            features = features[order[: self.samples].to(features.device)]
        return Neighbours(features, self.k)

    def score(self, outputs: Outputs, fitted: Any) -> Tensor:
        return cast(Tensor, fitted(outputs.features))
