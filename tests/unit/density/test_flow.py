"""Radial flows: log determinants, total mass, parallel flows, extremes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daedl.density.flow import RadialFlow, RadialLayer


def flow(num_flows, dimension, depth, seed=0, spread=1.0):
    """Flows in float64, with parameters of larger variance than the initial ones."""
    torch.manual_seed(seed)
    made = RadialFlow(num_flows, dimension, depth).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, spread)
    return made


def points(count, dimension, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dimension, generator=generator, dtype=torch.float64)


def by_hand(made, k, x):
    """log q_k of one point by the published formula, in NumPy."""
    log_det, dimension = 0.0, len(x)
    for layer in made.layers:
        center = layer.center[k].detach().numpy()
        a = np.log1p(np.exp(layer.raw_a[k].item()))
        b = -a + np.log1p(np.exp(layer.raw_b[k].item()))
        d = x - center
        r = np.sqrt((d**2).sum())
        h = 1 / (a + r)
        x = x + b * h * d
        log_det += (dimension - 1) * np.log1p(b * h) + np.log1p(b * h - b * h**2 * r)
    return log_det - 0.5 * (x**2).sum() - 0.5 * dimension * np.log(2 * np.pi)


def test_worked_number():
    made = RadialFlow(1, 2, 1).double()
    layer = made.layers[0]
    with torch.no_grad():
        layer.center.copy_(torch.tensor([[0.5, -0.5]]))
        layer.raw_a.fill_(0.3)
        layer.raw_b.fill_(-0.2)
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    out, log_det = layer(x.unsqueeze(1))
    assert out.flatten().tolist() == pytest.approx([0.962364, 1.81182], abs=5e-6)
    assert log_det.item() == pytest.approx(-0.0973296, abs=5e-8)
    assert made(x).item() == pytest.approx(-4.03962, abs=5e-6)


@pytest.mark.parametrize(("num_flows", "dimension", "depth"), [(3, 6, 6), (1, 16, 8), (4, 1, 2)])
def test_parallel_flows_equal_separate_ones(num_flows, dimension, depth):
    made, x = flow(num_flows, dimension, depth), points(5, dimension)
    log_q = made(x)
    assert log_q.shape == (5, num_flows)
    expected = [[by_hand(made, k, row.numpy()) for k in range(num_flows)] for row in x]
    np.testing.assert_allclose(log_q.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("dimension", [1, 2, 5, 16])
def test_log_determinant_equals_that_of_the_jacobian(dimension):
    made, x = flow(2, dimension, 4), points(3, dimension)

    def through(point, k):
        moved = point.expand(1, 2, -1)
        for layer in made.layers:
            moved, _ = layer(moved)
        return moved[0, k]

    for row in x:
        for k in range(2):
            jacobian = torch.autograd.functional.jacobian(lambda p, k=k: through(p, k), row)
            sign, log_det = torch.linalg.slogdet(jacobian)
            base = torch.distributions.Normal(0.0, 1.0).log_prob(through(row, k)).sum()
            assert sign == 1
            torch.testing.assert_close(made(row[None])[0, k], base + log_det)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 1.0), st.integers(1, 8))
def test_one_dimensional_densities_integrate_to_one(seed, spread, depth):
    made = flow(2, 1, depth, seed, spread)
    grid = torch.linspace(-40, 40, 4001, dtype=torch.float64)
    # Intervals of much mass are halved: layers can make peaks that are narrower than any fixed grid.
    for _ in range(20):
        with torch.no_grad():
            density = made(grid[:, None]).exp()
        masses = 0.5 * (density[1:] + density[:-1]) * grid.diff()[:, None]
        heavy = (masses > 1e-3).any(1)
        middles = 0.5 * (grid[1:] + grid[:-1])[heavy]
        grid = torch.cat((grid, middles)).sort().values
    mass = masses.sum(0)
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=1e-3, rtol=0)


def test_two_dimensional_density_integrates_to_one():
    made = flow(2, 2, 6)
    axis = torch.linspace(-12, 12, 481, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        density = made(grid).exp().reshape(481, 481, 2)
    mass = torch.trapezoid(torch.trapezoid(density, axis, dim=0), axis, dim=0)
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=1e-3, rtol=0)


@settings(max_examples=50, deadline=None)
@given(
    st.floats(-3, 3, allow_subnormal=False),
    st.floats(-6, 6, allow_subnormal=False),
    st.floats(-6, 6, allow_subnormal=False),
)
def test_layer_is_monotone_on_a_line(center, raw_a, raw_b):
    """Invertible for all parameters."""
    layer = RadialLayer(1, 1).double()
    with torch.no_grad():
        layer.center.fill_(center)
        layer.raw_a.fill_(raw_a)
        layer.raw_b.fill_(raw_b)
        out, _ = layer(torch.linspace(-8, 8, 2001, dtype=torch.float64)[:, None, None])
    assert (out.flatten().diff() > 0).all()


def test_layers_with_b_zero_are_the_identity():
    """a = softplus(a′) and b = softplus(b′) − a: with a′ = b′ the density is that of the base."""
    made, x = flow(3, 4, 5), points(7, 4)
    with torch.no_grad():
        for layer in made.layers:
            layer.raw_b.copy_(layer.raw_a)
    normal = torch.distributions.MultivariateNormal(torch.zeros(4).double(), torch.eye(4).double())
    torch.testing.assert_close(made(x), normal.log_prob(x)[:, None].expand(-1, 3))


def test_parameters_are_initialised_uniformly_within_one_over_root_d():
    torch.manual_seed(0)
    made = RadialFlow(50, 16, 8)
    for kind in ("center", "raw_a", "raw_b"):
        values = torch.cat([getattr(layer, kind).detach().flatten() for layer in made.layers])
        assert values.abs().max() <= 0.25
        assert values.abs().max() > 0.24
        assert values.std().item() == pytest.approx(0.25 / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("raw_a", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("raw_b", [-200.0, 0.0, 200.0])
def test_extremes_are_finite(dtype, raw_a, raw_b):
    """At the centre, next to it and far away, with strongly contracting or expanding layers."""
    torch.manual_seed(0)
    made = RadialFlow(2, 3, 1).to(dtype)
    with torch.no_grad():
        made.layers[0].raw_a.fill_(raw_a)
        made.layers[0].raw_b.fill_(raw_b)
    center = made.layers[0].center[0].detach()
    x = torch.stack([center, center + 1e-7, center + 1, center + 1e15]).requires_grad_()
    log_q = made(x)
    assert log_q.dtype == dtype
    assert torch.isfinite(log_q).all()
    gradients = torch.autograd.grad(log_q.sum(), [x, *made.parameters()])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_training_approaches_the_entropy_of_the_data():
    """Trained on normally distributed points around (1, 0)."""
    torch.manual_seed(0)
    made = RadialFlow(1, 2, 4)
    x = torch.tensor([1.0, 0.0]) + 0.5 * torch.randn(500, 2)
    optimizer = torch.optim.Adam(made.parameters(), lr=5e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss = -made(x).mean()
        loss.backward()
        optimizer.step()
    entropy = 2 * (0.5 * math.log(2 * math.pi * math.e) + math.log(0.5))
    assert loss.item() == pytest.approx(entropy, abs=0.12)
