"""Radial flows: several trainable densities, evaluated in parallel."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RadialLayer(nn.Module):
    """One radial layer for each of K flows in D dimensions (Rezende and Mohamed, ICML 2015).

        d = x − x₀,  r = ‖d‖,  h = 1 / (a + r),  out = x + b h d
        ln |det ∂out/∂x| = (D − 1) ln(1 + b h) + ln(1 + b h − b h² r)

    with a = softplus(a′) and b = −a + softplus(b′), so b > −a and the layer is invertible. x₀ (K, D),
    a′ and b′ (K,) are initialised with U(±1/√D), as in the published PostNet code.
    """

    def __init__(self, num_flows: int, dimension: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(dimension)
        self.center = nn.Parameter(torch.empty(num_flows, dimension).uniform_(-bound, bound))
        self.raw_a = nn.Parameter(torch.empty(num_flows).uniform_(-bound, bound))
        self.raw_b = nn.Parameter(torch.empty(num_flows).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map points x (B, K, D), x[:, k] by flow k, to new points and log determinants (B, K)."""
        # Below machine epsilon the layer would have an infinite slope at its centre.
        eps = torch.finfo(self.center.dtype).eps
        a = F.softplus(self.raw_a).clamp_min(eps)
        b = F.softplus(self.raw_b) - a
        d = x - self.center
        distance = a + torch.linalg.vector_norm(d, dim=-1)
        bh = (b / distance).clamp_min(eps - 1)
        # b h − b h² r = b h · a h with a h in (0, 1], so it is above −1 like b h.
        log_det = (x.shape[-1] - 1) * bh.log1p() + (bh * (a / distance)).log1p()
        return x + bh.unsqueeze(-1) * d, log_det


class RadialFlow(nn.Module):
    """K densities in D dimensions, each with `depth` radial layers from data to a standard normal.

    log q_k(x) = ln N(out; 0, I) + Σ over layers of ln |det|.
    """

    def __init__(self, num_flows: int, dimension: int, depth: int) -> None:
        super().__init__()
        self.num_flows, self.dimension = num_flows, dimension
        self.layers = nn.ModuleList(RadialLayer(num_flows, dimension) for _ in range(depth))

    def forward(self, latent: Tensor) -> Tensor:
        """Log densities log q (B, K) of points (B, D)."""
        x = latent.unsqueeze(1).expand(-1, self.num_flows, -1)
        log_dets = torch.zeros_like(x[..., 0])
        for layer in self.layers:
            x, log_det = layer(x)
            log_dets = log_dets + log_det
        return log_dets - 0.5 * (x.square().sum(-1) + self.dimension * math.log(2 * math.pi))
