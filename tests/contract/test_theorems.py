"""The paper's theorems as properties of fitted classifiers.

The default for vectors does not normalise features, that for images does. Theorem 1 is about the former, see
`test_normalised_features_are_bounded_so_scores_are_constant_along_rays`; theorems 3 and 4 hold for both.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import daedl
from daedl.methods import DAEDL
from daedl.networks import MLP, ConvNet
from daedl.outputs import Outputs

METHODS = {"default": DAEDL().resolved(MLP(2, 3)), "paper": DAEDL.as_published()}
SIZE = 8  # of images


def fit_scorer(method, outputs, targets):
    """Fits density and temperature; every tenth label is wrong, so that T is not at its lower bound."""
    wrong = torch.where(torch.arange(len(targets)) % 10 == 0, (targets + 1) % 3, targets)
    return method.fit_held_out(method.fit(outputs, targets), outputs, wrong)


@pytest.fixture(scope="module", params=METHODS)
def fitted(request):
    """Features of three Gaussian classes about the origin, their scorer, and a linear classifier."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(900) % 3
    centers = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    features = centers[targets] + 0.7 * torch.randn(900, 2, generator=generator)
    outputs = Outputs(features, features @ centers.T)
    scorer = fit_scorer(METHODS[request.param], outputs, targets)
    assert (scorer.temperature == 1) == (request.param == "paper")
    return features, scorer, centers.T


@pytest.mark.parametrize(
    "method",
    [DAEDL(), DAEDL(normalizer="smooth-quantile"), DAEDL.as_published()],
    ids=lambda method: method.normalizer,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_theorem_1_prediction_tends_to_uniform_far_from_the_data(method, seed):
    """In input space, through a trained network; smooth scores decrease like 1 / |log density|."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(300) % 3
    images = 3 * torch.eye(3, 4)[targets] + torch.randn(300, 4, generator=generator)
    torch.manual_seed(seed)
    classifier = daedl.Classifier(MLP(4, 3, hidden=(32,)), method)
    data = images, targets
    daedl.fit(classifier, data, data, max_epochs=5, accelerator="cpu", progress=False)
    direction = torch.nn.functional.normalize(torch.randn(20, 4, generator=generator), dim=-1)
    worst, products = [], []
    for distance in (1e3, 1e5, 1e7):
        p = classifier.predict(distance * direction)
        features = classifier.network(distance * direction).features
        # Assumption 1: inputs far from the data have features far from theirs.
        assert features.norm(dim=-1).min() > 1e-3 * distance
        worst.append(float((p.alpha - 1).abs().max()))
        products.append(p.density_score * p.log_density)
    assert worst[0] >= worst[1] >= worst[2]
    assert worst[2] < 1e-3
    torch.testing.assert_close(p.probs, torch.full((20, 3), 1 / 3), rtol=0, atol=1e-3)
    if method.normalizer == "minmax":
        assert (p.density_score == 0).all()
    else:
        torch.testing.assert_close(products[1], products[2], rtol=1e-3, atol=0)


@pytest.fixture(scope="module")
def several_depths():
    """A trained classifier on features of three blocks, and a scorer of its normalised features."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(300) % 3
    images = 3 * torch.eye(3, 4)[targets] + torch.randn(300, 4, generator=generator)
    torch.manual_seed(0)
    net = MLP(4, 3, hidden=(16, 12, 8), features=("dense1", "dense2", "dense3"))
    classifier, data = daedl.Classifier(net), (images, targets)
    daedl.fit(classifier, data, data, max_epochs=5, accelerator="cpu", progress=False)
    outputs, _ = classifier.collect(data)
    return classifier, outputs, fit_scorer(DAEDL(normalize_features=True), outputs, targets)


def test_theorem_1_holds_for_features_of_several_blocks(several_depths):
    """Also if the features of a single block move away, of the first as of the last."""
    classifier, outputs, _ = several_depths
    far = classifier.predict(1e6 * torch.nn.functional.normalize(torch.randn(20, 4)))
    torch.testing.assert_close(far.probs, torch.full((20, 3), 1 / 3), rtol=0, atol=1e-3)
    for start, width in ((0, 16), (16, 12), (28, 8)):
        features = outputs.features.clone()
        features[:, start : start + width] += 1e4
        _, score = classifier.fitted(features)
        assert score.max() < 1e-3


def test_normalised_features_are_bounded_so_scores_are_constant_along_rays(several_depths):
    """Theorem 1 has no limit there: the density sees directions, and no direction is far away."""
    _, outputs, scorer = several_depths
    _, score = scorer(outputs.features)
    for factor in (1e-3, 1e3, 1e6):
        torch.testing.assert_close(scorer(factor * outputs.features)[1], score)
    away = torch.nn.functional.normalize(torch.randn(200, 36))
    assert scorer(away)[1].max() < score.median()
    assert scorer(1e6 * away)[1].min() > 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=4, max_size=4), st.booleans())
def test_theorem_3_holds_for_features_of_several_blocks(several_depths, row, normalized):
    classifier, _, scorer = several_depths
    outputs = classifier.network.eval()(torch.tensor([row]))
    scorer = scorer if normalized else classifier.fitted
    p = DAEDL().predict(outputs, scorer)
    expected = (p.density_score * outputs.logits / scorer.temperature).softmax(-1)
    torch.testing.assert_close(p.probs, expected, rtol=1e-4, atol=1e-6)


def test_theorem_4_holds_for_features_of_several_blocks(several_depths):
    """On rays that leave the training features, with fixed logits, uncertainty does not decrease."""
    classifier, outputs, _ = several_depths
    center, spread = outputs.features.mean(0), outputs.features.std(0)
    for direction in spread * torch.nn.functional.normalize(torch.randn(20, 36)):
        ray = center + torch.linspace(30, 300, 50)[:, None] * direction
        log_density, score = classifier.fitted(ray)
        assert (log_density.diff() < 0).all()
        assert (score.diff() <= 0).all()
        logits = torch.tensor([3.0, 0.5, -1.0]).expand(50, 3)
        p = DAEDL().predict(Outputs(ray, logits, outputs.parts), classifier.fitted)
        assert (p.epistemic.diff() >= -1e-6).all()
        assert (p.dirichlet.entropy_of_mean.diff() >= -1e-6).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-30, 30), min_size=2, max_size=2), min_size=1, max_size=6))
def test_theorem_3_prediction_is_a_softmax_with_temperature_t_over_s(fitted, rows):
    _, scorer, classify = fitted
    features = torch.tensor(rows)
    logits = features @ classify
    p = DAEDL().predict(Outputs(features, logits), scorer)
    scored = p.density_score > 0
    temperature = scorer.temperature / p.density_score[scored]
    expected = (logits[scored] / temperature[:, None]).softmax(-1)
    torch.testing.assert_close(p.probs[scored], expected, rtol=1e-4, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 6.28), st.sampled_from(["entropy", "aleatoric", "epistemic"]))
def test_theorem_4_uncertainty_does_not_decrease_along_rays(fitted, angle, measure):
    """With fixed logits, as in Lemma 3: the theorem is about the effect of the density."""
    features, scorer, _ = fitted
    direction = torch.tensor([torch.tensor(angle).cos(), torch.tensor(angle).sin()])
    # Starts beyond the training data.
    start = (features @ direction).max()
    ray = (start + torch.linspace(0, 30, 200))[:, None] * direction
    distance = torch.cdist(ray, features).mean(1)
    log_density, score = scorer(ray)
    assert (distance.diff() > 0).all()
    # Assumption 2: the score decreases with the distance.
    assert (log_density.diff() < 0).all()
    assert (score.diff() <= 0).all()
    logits = torch.tensor([3.0, 0.5, -1.0]).expand(200, 3)
    p = DAEDL().predict(Outputs(ray, logits), scorer)
    values = {
        "entropy": torch.special.entr(p.probs).sum(-1),
        "aleatoric": p.aleatoric,
        "epistemic": p.epistemic,
    }[measure]
    assert (values.diff() >= -1e-6).all()
    # Strictly, unless the score is zero at the start of the ray.
    assert values[-1] > values[0] or score[0] < 1e-3


@pytest.fixture(scope="module", params=["auto", "full", "tied"])
def of_images(request):
    """The default for images, here three orientations of a gradient: a trained classifier and its outputs."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(300) % 3
    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    shapes = torch.stack([row, column, (row + column) / 2]) * 255 / SIZE
    noise = 60 * torch.randn(300, SIZE, SIZE, generator=generator)
    pixels = (shapes[targets] + noise).clamp(0, 255).to(torch.uint8)[:, None]
    torch.manual_seed(0)
    network = ConvNet(1, 3, SIZE, channels=6, hidden=())
    classifier = daedl.Classifier(network, DAEDL(covariance=request.param))
    assert classifier.method.normalize_features is True
    known, held_out = (pixels[:200], targets[:200]), (pixels[200:], targets[200:])
    daedl.fit(classifier, known, held_out, max_epochs=5, accelerator="cpu", progress=False)
    return classifier, classifier.collect(known)[0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 255), min_size=SIZE**2, max_size=SIZE**2))
def test_theorem_3_holds_for_the_default_for_images(of_images, pixels):
    """From 8-bit pixels to probabilities."""
    classifier, _ = of_images
    image = torch.tensor(pixels, dtype=torch.uint8).view(1, 1, SIZE, SIZE)
    p = classifier.predict(image)
    with torch.no_grad():
        logits = classifier(image).logits
    expected = (p.density_score * logits / classifier.fitted.temperature).softmax(-1)
    torch.testing.assert_close(p.probs, expected, rtol=1e-4, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 199), st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_theorem_4_holds_along_arcs_of_normalised_features(of_images, sample, seed, length):
    """Uncertainty increases with the Mahalanobis distances of normalised features from all classes.

    The density is constant along a ray, so the paths are great circles through a training feature, to its
    opposite, with the logits fixed as in Lemma 3. Where all distances increase the score decreases, whatever
    the lengths of the features.
    """
    classifier, outputs = of_images
    scorer = classifier.fitted
    start = torch.nn.functional.normalize(outputs.features[sample].double(), dim=0)
    tangent = torch.randn(len(start), generator=torch.Generator().manual_seed(seed)).double()
    tangent = torch.nn.functional.normalize(tangent - (tangent @ start) * start, dim=0)
    angles = torch.linspace(0, math.pi, 200, dtype=torch.float64)[:, None]
    arc = angles.cos() * start + angles.sin() * tangent
    further = (scorer.density.squared_distances(arc).diff(dim=0) > 1e-6).all(1)
    assert further.sum() > 50
    log_density, score = scorer(length * arc)
    logits = torch.tensor([3.0, 0.5, -1.0], dtype=torch.float64).expand(200, 3)
    p = DAEDL().predict(Outputs(length * arc, logits), scorer)
    assert (log_density.diff()[further] < 0).all()
    assert (score.diff()[further] <= 0).all()
    for values in (torch.special.entr(p.probs).sum(-1), p.aleatoric, p.epistemic):
        assert (values.diff()[further] >= -1e-12).all()
    # Strictly, unless the score is zero at the start of the arc.
    assert p.epistemic[-1] > p.epistemic[0] or score[0] < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=6),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.99),
)
def test_lemma_3_entropy_does_not_increase_with_the_score(logits, first, second):
    low, high = sorted((first, second))
    z = torch.tensor(logits, dtype=torch.float64)
    entropies = [daedl.Dirichlet(s * z).entropy_of_mean for s in (low, high)]
    assert entropies[1] <= entropies[0] + 1e-12


def test_corollary_residual_branches_of_norm_below_one_bound_distances():
    """From below and above (Lemma 4)."""
    torch.manual_seed(0)

    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))
            self.body = torch.nn.Identity()
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x):
            for branch in self.branches:
                x = x + branch(x).relu()
            return self.head(self.body(x))

    network = daedl.networks.FeatureModule(Residual(), features="body", input_shape=(6,))
    settings = daedl.SpectralNorm(coefficient=0.5)
    daedl.spectral_normalize(network, settings).eval()
    pairs = torch.randn(2, 500, 6)
    with torch.no_grad():
        moved = (network(pairs[0]).features - network(pairs[1]).features).norm(dim=-1)
    before = (pairs[0] - pairs[1]).norm(dim=-1)
    ratio = moved / before
    assert ratio.min() > (1 - 0.5) ** 3 - 1e-5
    assert ratio.max() < (1 + 0.5) ** 3 + 1e-5
