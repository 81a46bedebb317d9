"""Distance to the k-th nearest training feature."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.checks import Count, Whole, require_whole
from daedl.methods.post_hoc import PostHoc, gather_rows
from daedl.outputs import Outputs
from daedl.prediction import Prediction

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


class Neighbours(nn.Module):
    """L2-normalised training features; computes distances to the k-th nearest."""

    stored: Tensor
    squares: Tensor

    def __init__(self, stored: Tensor, k: int) -> None:
        super().__init__()
        if k > len(stored):
            raise ValueError(
                f"k is {k} but there are {len(stored)} training features; expected k of at most "
                "that number: lower k, or keep more samples"
            )
        self.k = k
        self.register_buffer("stored", stored)
        self.register_buffer("squares", stored.square().sum(1), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Distances (B,) of features (B, H)."""
        # Cast before normalising: the epsilon of `normalize` underflows in half precision.
        normalized = F.normalize(features.to(self.stored), dim=1)
        blocks = nearest(normalized, self.stored, self.squares, self.k)
        distances = [distance(block, self.stored, indices[:, -1]) for block, indices in blocks]
        return torch.cat(distances)

    def settings(self) -> dict[str, Any]:
        """JSON-serialisable settings that rebuild this together with `state_dict()`."""
        return {"k": self.k}


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
        """Store the training features, or a random subset."""
        del targets
        features = gather_rows(F.normalize(outputs.features.float(), dim=1))
        if self.samples is not None:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(len(features), generator=generator)
            features = features[order[: self.samples].to(features.device)]
        return Neighbours(features, self.k)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z), epistemic score: distance to the k-th nearest training feature."""
        distance: Tensor = self.require_fitted(fitted)(outputs.features)
        return Prediction.from_probs(outputs.logits.softmax(-1), distance.to(outputs.logits))

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Neighbours:
        """Rebuild the stored features from a model file."""
        return Neighbours(tensors["stored"], settings["k"])
