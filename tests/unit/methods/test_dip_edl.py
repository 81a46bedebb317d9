"""DIP-EDL against its formula, with densities of SciPy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.special import softmax as scipy_softmax
from scipy.stats import multivariate_normal

from daedl.methods import DIPEDL
from daedl.outputs import Outputs


def with_logits(features, scale=2.0):
    generator = torch.Generator().manual_seed(1)
    logits = scale * torch.randn(len(features), 3, generator=generator)
    return Outputs(features, logits.to(features))


@pytest.mark.parametrize("gamma", [1.0, 0.01])
def test_concentrations_against_scipy(blobs, gamma):
    features, targets = blobs[0].double(), blobs[1]
    outputs, log_densities = with_logits(features), []
    for c in range(3):
        own = features[targets == c]
        gaussian = multivariate_normal(own.mean(0).numpy(), own.T.cov().numpy())
        log_densities.append(gaussian.logpdf(features.numpy()) + np.log(len(own) / 610))
    log_density = logsumexp(log_densities, axis=0)
    standardized = (log_density - log_density.mean()) / log_density.std(ddof=1)
    counts = 610 * np.exp(standardized)[:, None]
    expected = 1 + gamma * counts * scipy_softmax(outputs.logits.numpy(), axis=1)
    method = DIPEDL(gamma=gamma)
    p = method.predict(outputs, method.fit(outputs, targets))
    torch.testing.assert_close(p.alpha, torch.tensor(expected), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(p.log_density, torch.tensor(log_density), rtol=1e-4, atol=1e-4)


def test_far_from_the_data_the_prediction_is_uniform_with_the_class_of_the_network(blobs):
    outputs, method = with_logits(blobs[0]), DIPEDL()
    far = Outputs(1e3 * outputs.features, outputs.logits)
    p = method.predict(far, method.fit(outputs, blobs[1]))
    assert torch.equal(p.alpha, torch.ones_like(p.alpha))
    assert torch.equal(p.labels, outputs.logits.argmax(-1))


def test_equal_densities_are_not_divided_by_their_deviation():
    """Samples at the corners of a simplex, one class: all are equally far from the mean."""
    features = torch.eye(5, dtype=torch.float64)[:, :4].repeat(4, 1)
    features[4::5] = 0.25 * (1 - 5**0.5)
    outputs = Outputs(features, torch.zeros(20, 1, dtype=torch.float64))
    fitted = DIPEDL().fit(outputs, torch.zeros(20, dtype=torch.long))
    assert fitted.deviation == 1.0
    p = DIPEDL().predict(outputs, fitted)
    torch.testing.assert_close(p.alpha0, torch.full((20,), 21.0, dtype=torch.float64))


def test_invalid_settings_are_rejected():
    with pytest.raises(ValueError, match="shrinkage is 2"):
        DIPEDL(shrinkage=2)
