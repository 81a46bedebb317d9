"""Squared Mahalanobis distances to all classes, by matrix products instead of triangular solves.

`log_volume` (C,) is −½ ln |Σ_c|.
"""

import copy
from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from daedl.density.class_parts import projections

# The inverse of a Cholesky factor is triangular. In this many column blocks, each with only its nonzero
# rows, the product costs 9/16 of the full one (measured: faster than 4 blocks and than 1).
BLOCKS = 8
# Narrower blocks cost more than the zeros that they omit (measured with one Gaussian on 64 features).
NARROWEST = 64


class Distances(nn.Module):
    """Base class: maps centred features (B, H) to squared distances (B, C).

    `exact` are the names of buffers that remain float64 in every dtype, `elements` the number of values that
    are computed per row.
    """

    log_volume: Tensor
    exact: ClassVar[tuple[str, ...]] = ("log_volume",)
    elements: int

    def _keep(self, **buffers: Tensor) -> None:
        """Registers buffers that model files don't contain."""
        for name, each in buffers.items():
            self.register_buffer(name, each, persistent=False)

    def cast(self, dtype: torch.dtype) -> Self:
        """Copy of this module with products in another dtype; the others are shared."""
        again = copy.copy(self)
        again._buffers = {
            name: each if each is None or name in self.exact else each.to(dtype)
            for name, each in self._buffers.items()
        }
        return again


class FullDistances(Distances):
    """‖W_c f − W_c μ_c‖², W_c the inverse Cholesky factor of the covariance of class c."""

    def __init__(self, means: Tensor, covariances: Iterable[Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.num_classes, width = means.shape
        self.elements = means.numel()
        blocks = min(max(means.numel() // NARROWEST, 1), BLOCKS)
        edges = torch.linspace(0, width, blocks + 1).round().int().tolist()
        self.spans = [(a, b) for a, b in pairwise(edges) if b > a]
        for k, (start, stop) in enumerate(self.spans):
            shift = torch.empty(self.num_classes, stop - start, dtype=dtype)
            product = torch.empty(stop, *shift.shape, dtype=dtype)
            self._keep(**{f"product{k}": product, f"shift{k}": shift})
        log_volume = torch.empty(self.num_classes, dtype=torch.float64)
        for c, covariance in enumerate(covariances):
            whitener, log_volume[c] = inverse_factor(covariance)
            whitened_mean = whitener @ means[c]
            for (start, stop), product, shift in self._blocks():
                product[:, c] = whitener[start:stop, :stop].T
                shift[c] = -whitened_mean[start:stop]
        self._keep(log_volume=log_volume)

    def _blocks(self) -> Iterable[tuple[tuple[int, int], Tensor, Tensor]]:
        for k, span in enumerate(self.spans):
            yield span, getattr(self, f"product{k}"), getattr(self, f"shift{k}")

    def forward(self, features: Tensor) -> Tensor:
        """Distances (B, C) of centred features (B, H)."""
        total = features.new_zeros(features.shape[0], self.num_classes)
        for (_, stop), product, shift in self._blocks():
            whitened = torch.addmm(shift.flatten(), features[:, :stop], product.flatten(1))
            by_class = whitened.view(-1, *shift.shape)
            total += torch.linalg.vector_norm(by_class, dim=-1).square()
        return total


class TiedDistances(Distances):
    """‖W f − W μ_c‖², W the inverse Cholesky factor of the shared covariance."""

    product: Tensor
    whitened_means: Tensor
    exact = ("log_volume", "whitened_means", "least")

    def __init__(self, means: Tensor, covariances: Iterable[Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.elements = sum(means.shape)
        (covariance,) = covariances
        whitener, log_volume = inverse_factor(covariance)
        self._keep(product=whitener.T.to(dtype), whitened_means=means @ whitener.T)
        self._keep(log_volume=log_volume.expand(len(means)).clone())

    def forward(self, features: Tensor) -> Tensor:
        """Distances (B, C) of centred features (B, H)."""
        return self.between(features @ self.product)

    def between(self, whitened: Tensor) -> Tensor:
        """Squared distances (B, C) of whitened features (B, H) to the whitened means."""
        whitened = whitened.double()
        # As a matrix product for any number of rows; in float64, because the squares nearly cancel.
        return torch.cdist(
            whitened, self.whitened_means, compute_mode="use_mm_for_euclid_dist"
        ).square()

    def trace(self, root: Tensor) -> float:
        """tr Σ⁻¹ QᵀQ for the shared covariance and a matrix Q (N, H)."""
        return float((root.to(self.product) @ self.product).double().square().sum())


class TiedLowRankDistances(TiedDistances):
    """‖z‖² − ‖A_c z‖² with z = W f − W μ_c: covariances of a shared one, WᵀW its inverse, plus G_cᵀG_c / f_c.

    By the Woodbury identity; A_c (r, H) are those of `projections` for V_c = G_c Wᵀ.
    """

    projections: Tensor
    shift: Tensor
    least: Tensor

    def __init__(
        self,
        means: Tensor,
        covariances: Iterable[Tensor],
        dtype: torch.dtype,
        factors: Tensor,
        freedom: Tensor,
    ) -> None:
        # In float64 until the projections are computed.
        super().__init__(means, covariances, torch.float64)
        self.elements += factors[..., 0].numel()
        along, log_det = projections(factors @ self.product, freedom)
        shift = -torch.einsum("crh,ch->cr", along, self.whitened_means)
        self.log_volume = self.log_volume - 0.5 * log_det
        self.product = self.product.to(dtype)
        self._keep(projections=along.flatten(0, 1).to(dtype), shift=shift.to(dtype))
        # The squares along A_c are at most a share of ‖z‖², which rounding must not exceed.
        self._keep(least=1 - along.square().sum(2).amax(1))

    def forward(self, features: Tensor) -> Tensor:
        """Distances (B, C) of centred features (B, H)."""
        whitened = features @ self.product
        along = torch.addmm(self.shift.flatten(), whitened, self.projections.T)
        squares = along.view(-1, *self.shift.shape).square().sum(-1)
        total = self.between(whitened)
        return torch.maximum(total - squares, self.least * total)

    def explained(self, root: Tensor) -> Tensor:
        """Amount (C,) that the parts subtract from `trace`, for Q (N, H) or one per class (C, N, H)."""
        by_class = self.projections.view(*self.shift.shape, -1)
        along = (root.to(self.product) @ self.product) @ by_class.mT
        return along.double().square().sum((1, 2))


class DiagonalDistances(Distances):
    """Σ_h (f_h − μ_ch)² / σ²_ch, expanded to one product: [f², f] · [σ⁻², −2 μ σ⁻²] + Σ_h μ²/σ²."""

    product: Tensor
    squared_means: Tensor

    def __init__(self, means: Tensor, covariances: Iterable[Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.elements = 2 * means.shape[1] + means.shape[0]
        variances = torch.stack(list(covariances))
        product = torch.cat([1 / variances, -2 * means / variances], dim=1).T.contiguous()
        squared_means = (means.square() / variances).sum(1)
        self._keep(product=product.to(dtype), squared_means=squared_means.to(dtype))
        self._keep(log_volume=-0.5 * variances.log().sum(1))

    def forward(self, features: Tensor) -> Tensor:
        """Distances (B, C) of centred features (B, H)."""
        both = torch.cat([features.square(), features], dim=1)
        return torch.addmm(self.squared_means, both, self.product)


class LowRankDistances(Distances):
    """Σ_i (u_ciᵀ d)² / λ_ci + (‖d‖² − Σ_i (u_ciᵀ d)²) / σ²_c with d = f − μ_c, i = 1, ..., rank.

    Probabilistic PCA (Tipping and Bishop, 1999): λ_ci are the largest eigenvalues of the covariance of
    class c, u_ci their eigenvectors, and σ²_c is the mean of the other eigenvalues.
    """

    means: Tensor
    product: Tensor
    shift: Tensor
    along: Tensor
    across: Tensor

    def __init__(
        self, means: Tensor, spectra: Iterable[tuple[Tensor, Tensor, Tensor]], dtype: torch.dtype
    ) -> None:
        """`spectra` are per class the eigenvalues λ (rank,), eigenvectors (H, rank) and σ² ()."""
        super().__init__()
        value, product, rest = map(torch.stack, zip(*spectra, strict=True))
        rank = value.shape[1]
        self.elements = rank * means.shape[0] + means.shape[1]
        shift = torch.einsum("ch,chr->cr", means, product)
        log_volume = value.log().sum(1) + (means.shape[1] - rank) * rest.log()
        self._keep(
            means=means.to(dtype),
            product=product.permute(1, 0, 2).to(dtype).contiguous(),
            shift=-shift.to(dtype),
            along=(1 / value).to(dtype),
            across=(1 / rest).to(dtype),
            log_volume=-0.5 * log_volume,
        )

    def forward(self, features: Tensor) -> Tensor:
        """Distances (B, C) of centred features (B, H)."""
        projected = torch.addmm(self.shift.flatten(), features, self.product.flatten(1))
        squares = projected.view(-1, *self.shift.shape).square()
        lengths = features.square().sum(1, keepdim=True) + self.means.square().sum(1)
        lengths = torch.addmm(lengths, features, self.means.T, alpha=-2)
        # Negative only by rounding.
        outside = (lengths - squares.sum(-1)).clamp_min(0)
        return (squares * self.along).sum(-1) + outside * self.across


def inverse_factor(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse Cholesky factor W (H, H), lower triangular with WᵀW = Σ⁻¹, and ln |W|."""
    factor = torch.linalg.cholesky(covariance)
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    whitener = torch.linalg.solve_triangular(factor, identity, upper=False)
    return whitener, -factor.diagonal().log().sum()
