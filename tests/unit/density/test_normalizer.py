"""Normalisers: the paper's, and one that is robust to outliers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daedl.density import NORMALIZERS, HalfQuantile, MinMax, SmoothQuantile

values = st.floats(-1e6, 1e6)
rows = st.lists(values, min_size=3, max_size=50, unique=True).map(
    lambda row: torch.tensor(row, dtype=torch.float64)
)


def test_minmax_is_clipped_on_both_sides():
    normalizer = MinMax.fit(torch.tensor([-6.0, -4.0, -2.0]))
    scores = normalizer(torch.tensor([-100.0, -6.0, -3.0, -2.0, 5.0]))
    assert scores.tolist() == [0.0, 0.0, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("kind", NORMALIZERS.values(), ids=list(NORMALIZERS))
@given(rows, rows)
def test_scores_are_in_range_and_monotone(kind, train, other):
    if train.max() - train.min() < 1e-6:
        return
    normalizer = kind.fit(train)
    scores = normalizer(other.sort().values)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (scores.diff() >= -1e-12).all()


smooth = pytest.mark.parametrize(("kind", "bottom"), [(SmoothQuantile, 0.05), (HalfQuantile, 0.5)])


@smooth
def test_smooth_ranges_are_continuous_with_equal_slopes_at_the_joints(kind, bottom):
    normalizer = kind(low=-10.0, high=10.0, level=0.05)
    ends = normalizer(torch.tensor([-10.0, 10.0], dtype=torch.float64))
    assert ends.tolist() == pytest.approx([bottom, 0.95])
    step = 1e-6
    for joint in (-10.0, 10.0):
        points = torch.tensor([joint - step, joint, joint + step], dtype=torch.float64)
        left, right = normalizer(points).diff() / step
        assert float(left) == pytest.approx(float(right), rel=1e-3)
        assert float(left) == pytest.approx((0.95 - bottom) / 20, rel=1e-3)


@smooth
def test_smooth_tails_are_strictly_monotone_and_tend_to_zero_and_one(kind, bottom):
    normalizer = kind.fit(torch.linspace(-100, 100, 1001, dtype=torch.float64))
    far = torch.tensor([-1e12, -1e4, -1e3, -150.0], dtype=torch.float64)
    scores = normalizer(far)
    assert (scores.diff() > 0).all()
    assert scores[0] < bottom * 1e-8
    above = normalizer(torch.tensor([120.0, 1e3, 1e9], dtype=torch.float64))
    assert (above.diff() > 0).all()
    assert above[-1] > 1 - 1e-6


def test_half_quantile_falls_faster_than_any_power_of_the_distance():
    """Logits grow with the distance r and log densities like −r², so that s z must still tend to 0."""
    normalizer = HalfQuantile.fit(torch.linspace(-100, 100, 1001, dtype=torch.float64))
    r = torch.tensor([20.0, 40.0, 80.0], dtype=torch.float64)
    evidence = r**4 * normalizer(-(r**2))
    assert (evidence.diff() < 0).all()
    assert float(normalizer(torch.tensor(-98.0 - 196.0, dtype=torch.float64))) == pytest.approx(
        0.5 * math.exp(-0.98), rel=1e-3
    )


def test_held_out_samples_widen_the_range_downwards_only():
    normalizer = HalfQuantile(low=-10.0, high=10.0)
    held_out = torch.linspace(-200, 0, 101, dtype=torch.float64)
    assert normalizer.widened(held_out) == HalfQuantile(low=-190.0, high=10.0)  # the 5% quantile
    assert normalizer.widened(held_out + 300) == normalizer
    assert MinMax(-10.0, 10.0).widened(held_out) == MinMax(-10.0, 10.0)


def test_one_outlier_affects_minmax_but_not_smooth_quantile():
    train = torch.linspace(-100, 0, 1000, dtype=torch.float64)
    outlier = torch.cat([train, torch.tensor([-1e5], dtype=torch.float64)])
    inside = torch.linspace(-90, -10, 50, dtype=torch.float64)
    assert MinMax.fit(outlier)(inside).min() > 0.99
    for kind in (SmoothQuantile, HalfQuantile):
        torch.testing.assert_close(
            kind.fit(train)(inside), kind.fit(outlier)(inside), rtol=0, atol=5e-3
        )


@pytest.mark.parametrize("kind", [SmoothQuantile, HalfQuantile])
def test_known_samples_do_not_saturate(kind):
    """Left-out log densities of a normal in 64 dimensions, and densities of new samples in float32."""
    values = torch.randn(20_500, 64, generator=torch.Generator().manual_seed(0)).square().sum(1)
    scores = kind.fit(-values[:500])(-values[500:]).float()
    assert ((scores == 0) | (scores == 1)).sum() == 0
    assert len(scores.unique()) > 0.95 * len((-values[500:]).unique())
    assert len(MinMax.fit(-values[:500])(-values[500:]).unique()) < len(scores.unique())


def test_constant_densities_are_rejected():
    with pytest.raises(ValueError, match=r"from 3\.0 to 3\.0"):
        MinMax.fit(torch.full((5,), 3.0))


def test_smooth_quantiles_equal_those_of_the_values():
    values = torch.arange(1001.0)[torch.randperm(1001, generator=torch.Generator().manual_seed(0))]
    assert SmoothQuantile.fit(values) == SmoothQuantile(low=10.0, high=990.0, level=0.01)
    found = SmoothQuantile.fit(values, level=0.1)
    assert (found.low, found.high) == (100.0, 900.0)
