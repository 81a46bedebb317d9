"""Heads for embeddings: directions of vectors in, verdicts out."""

import math

import numpy as np
import pytest
import torch
from sklearn.base import clone

import daedl
from daedl.networks import MLP, FeatureHead
from daedl.training import embedding_recipe

WIDTH, CLASSES = 32, 12


def embeddings(number, seed=0, classes=range(CLASSES)):
    """Unit vectors around one direction per class, few of each class."""
    centres = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([*classes]).repeat(number)
    vectors = centres[labels] + 0.8 * torch.randn(len(labels), WIDTH, generator=generator)
    return torch.nn.functional.normalize(vectors, dim=1), labels


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    names = [f"class {number}" for number in range(CLASSES)]
    model = daedl.Classifier.for_embeddings(WIDTH, class_names=names)
    options = {**embedding_recipe().options(), "max_epochs": 8}
    daedl.fit(model, embeddings(20), embeddings(10, 1), progress=False, **options)
    return model


def test_the_defaults_fit_embeddings(trained):
    method = trained.method
    assert (method.covariance, method.normalize_features, method.spectral) == ("tied", False, None)
    assert trained.network.arguments["normalize"] is True
    given = daedl.Classifier.for_embeddings(WIDTH, CLASSES, covariance="diagonal").method
    assert given.covariance == "diagonal"
    assert daedl.Classifier(MLP(WIDTH, CLASSES)).method.covariance == "auto"
    with pytest.raises(ValueError, match="class_names"):
        daedl.Classifier.for_embeddings(WIDTH)


def test_unknown_classes_are_uncertain(trained):
    known, labels = embeddings(10, 2)
    unknown, _ = embeddings(15, 3, classes=range(CLASSES, 20))
    p, q = trained.predict(known), trained.predict(unknown)
    assert (p.labels == labels).double().mean() > 0.9
    assert daedl.metrics.auroc(p.epistemic, q.epistemic) > 0.9


def test_only_directions_count(trained, tmp_path):
    known, _ = embeddings(3, 2)
    trained.save(tmp_path / "m.daedl")
    loaded = daedl.Classifier.load(tmp_path / "m.daedl")
    first, scaled = trained.predict(known), loaded.predict(17 * known)
    torch.testing.assert_close(first.log_alpha, scaled.log_alpha, rtol=1e-4, atol=1e-5)


def test_inputs_have_a_mean_square_of_one():
    head = FeatureHead(WIDTH, 3, normalize=True)
    vectors = torch.randn(5, WIDTH) * 9
    features = head(vectors).features
    torch.testing.assert_close(features.square().mean(1), torch.ones(5))
    expected = math.sqrt(WIDTH) * vectors / vectors.norm(dim=1, keepdim=True)
    torch.testing.assert_close(features, expected)


def test_a_linear_head_has_the_density_on_its_input():
    model = daedl.Classifier.for_embeddings(WIDTH, CLASSES, hidden=())
    assert (model.network.depths, model.network.num_features) == (("input",), WIDTH)


@pytest.mark.parametrize("setting", ["auto", True, False])
def test_the_estimator_recognises_embeddings(setting):
    inputs, labels = (each.numpy() for each in embeddings(12))
    names = np.array([f"c{label:02}" for label in labels])
    estimator = daedl.DAEDLClassifier(embeddings=setting, max_epochs=8, random_state=0)
    assert clone(estimator).get_params()["embeddings"] == setting
    estimator.fit(inputs, names)
    assert estimator.embeddings_ is (setting is not False)
    assert isinstance(estimator.model_.network, FeatureHead if setting else MLP)
    assert (estimator.scaler_ is None) == (setting is not False)
    test, expected = embeddings(5, 1)
    found = estimator.predict(test.numpy())
    assert (found == [f"c{label:02}" for label in expected.tolist()]).mean() > 0.8


def test_tables_are_not_taken_for_embeddings():
    angles = np.linspace(0, 6, 60)
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    labels = (angles > 3).astype(int)
    for samples in (circle, np.random.default_rng(0).normal(size=(60, 20))):
        estimator = daedl.DAEDLClassifier(max_epochs=2, random_state=0).fit(samples, labels)
        assert estimator.embeddings_ is False
    with pytest.raises(ValueError, match="embeddings is 'yes'"):
        daedl.DAEDLClassifier(embeddings="yes").fit(circle, labels)
