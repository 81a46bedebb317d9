"""Selection of the covariance structure by leave-one-out density."""

import pytest
import torch

from daedl.density import fit_gaussians, fitting
from daedl.density.leave_one_out import left_out_log_density

CANDIDATES = ["full", "low-rank", "tied", "diagonal"]


def sample(name, samples, generator, width=24):
    """Two classes whose covariances have the structure `name`."""
    targets = torch.arange(samples) % 2
    noise = torch.randn(samples, width, generator=generator, dtype=torch.float64)
    mixing = torch.randn(2, width, width, generator=generator, dtype=torch.float64)
    scales = 3 * torch.rand(2, width, generator=generator, dtype=torch.float64) + 0.1
    if name == "full":
        features = torch.einsum("nh,nhk->nk", noise, mixing[targets])
    elif name == "tied":
        features = noise @ mixing[0]
    elif name == "diagonal":
        features = noise * scales[targets]
    else:
        directions = torch.einsum("nh,nhk->nk", noise[:, :2], mixing[targets, :2])
        isotropic = torch.randn(samples, width, generator=generator, dtype=torch.float64)
        features = 2 * directions + 0.3 * isotropic
    return features + 2 * targets[:, None], targets


@pytest.mark.parametrize("name", CANDIDATES)
def test_structure_of_the_data_is_selected(name):
    generator = torch.Generator().manual_seed(0)
    features, targets = sample(name, 300, generator)
    density = fit_gaussians(features, targets, 2, "auto", rank=2)
    assert density.structure == name
    assert list(density.candidates) == CANDIDATES
    for each, figure in density.candidates.items():
        left_out = left_out_log_density(
            fit_gaussians(features, targets, 2, each, rank=2), features, targets
        )
        assert figure == pytest.approx(float(left_out.mean()), rel=1e-9)


def test_fewer_parameters_are_selected_if_samples_are_few():
    """Covariances that hardly differ are estimated separately only from many samples."""
    generator = torch.Generator().manual_seed(0)
    features, targets = sample("tied", 4000, generator)
    features[targets == 0, 0] *= 1.5
    selected = [fit_gaussians(features[:n], targets[:n], 2, "auto").structure for n in (100, 4000)]
    assert selected == ["tied", "full"]


def test_new_samples_agree_with_the_selection():
    features, targets = sample("low-rank", 4000, torch.Generator().manual_seed(1))
    held_out = {}
    for name in CANDIDATES:
        density = fit_gaussians(features[:200], targets[:200], 2, name, rank=2)
        held_out[name] = float(density(features[200:]).mean())
    selected = fit_gaussians(features[:200], targets[:200], 2, "auto", rank=2)
    assert selected.structure == max(held_out, key=held_out.get)
    for name, figure in selected.candidates.items():
        assert figure == pytest.approx(held_out[name], abs=0.1 * abs(held_out[name]))


@pytest.mark.parametrize(("limit", "expected"), [(8 * 2 * 24**2, 4), (8 * 24**2, 3), (0, 1)])
def test_statistics_that_exceed_the_memory_are_no_candidates(monkeypatch, limit, expected):
    monkeypatch.setattr(fitting, "_CANDIDATE_BYTES", limit)
    features, targets = sample("diagonal", 300, torch.Generator().manual_seed(0))
    density = fit_gaussians(features, targets, 2, "auto")
    assert density.structure == "diagonal"
    assert len(density.candidates) == expected


def test_matrices_per_class_that_take_too_long_are_no_candidates(monkeypatch):
    monkeypatch.setattr(fitting, "_CANDIDATE_OPERATIONS", 2 * 24**3 - 1)
    features, targets = sample("diagonal", 300, torch.Generator().manual_seed(0))
    candidates = fit_gaussians(features, targets, 2, "auto").candidates
    assert set(candidates) == {"tied", "tied-low-rank", "diagonal"}


def test_directions_of_classes_with_too_few_samples_are_no_candidate(monkeypatch):
    monkeypatch.setattr(fitting, "_CANDIDATE_OPERATIONS", 2 * 24**3 - 1)
    features, targets = sample("tied", 200, torch.Generator().manual_seed(0))
    tied, low_rank = (
        fit_gaussians(features, targets, 2, covariance) for covariance in ("tied", "tied-low-rank")
    )
    torch.testing.assert_close(tied(features), low_rank(features))
    density = fit_gaussians(features, targets, 2, "auto")
    assert set(density.candidates) == {"tied", "diagonal"}
    assert torch.equal(density(features), tied(features))


def test_invalid_settings_are_rejected(blobs):
    with pytest.raises(ValueError, match="did you mean 'low-rank'"):
        fit_gaussians(*blobs, 3, "lowrank")
    with pytest.raises(ValueError, match="rank is 0"):
        fit_gaussians(*blobs, 3, "low-rank", rank=0)
