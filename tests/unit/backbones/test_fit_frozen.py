"""Training on cached features: same model as without cache, and what happens to a damaged cache."""

import warnings

import pytest
import torch

import daedl
from daedl.networks import Backbone, ConvNet
from daedl.training import CacheWarning
from daedl.training.feature_cache import FeatureCache, default_folder
from daedl.training.frozen import features_of, head_of

SIZE = 32


def images(number=60, seed=0):
    """Three classes of noise around a colour each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    colours = torch.tensor([[200.0, 60, 60], [60, 200, 60], [60, 60, 200]])[labels]
    noise = 40 * torch.randn(number, 3, SIZE, SIZE, generator=generator)
    return (colours[:, :, None, None] + noise).clamp(0, 255).to(torch.uint8), labels


def model(method="daedl", hidden=(), **settings):
    """A classifier on a backbone with random weights, which needs no package."""
    torch.manual_seed(0)
    network = Backbone("efficientnet-lite0", 3, SIZE, hidden)
    return daedl.Classifier(network, method, **settings)


def passes(classifier):
    """Counts images that pass through the backbone; `counted` is the total."""
    counted = []
    stem = classifier.network.plain.extractor[0]
    stem.register_forward_hook(lambda _module, inputs, _output: counted.append(len(inputs[0])))
    return counted


OPTIONS = {"max_epochs": 3, "progress": False}
TIED = {"spectral": None, "covariance": "diagonal", "leave_one_out": True}


@pytest.fixture(autouse=True)
def quiet():
    """Random features overfit, of which `fit` warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", daedl.DensityWarning)
        yield


@pytest.mark.slow
def test_model_equals_one_whose_images_pass_each_time(tmp_path):
    classifier = model(**TIED)
    daedl.fit_frozen(classifier, images(), images(30, 1), cache=tmp_path, **OPTIONS)
    slow = model(**TIED)
    daedl.fit(slow, images(), images(30, 1), **OPTIONS)
    new, _ = images(12, 2)
    fast, reference = classifier.predict(new), slow.predict(new)
    torch.testing.assert_close(fast.alpha0, reference.alpha0, rtol=1e-3, atol=1e-4)
    rows, _ = features_of(
        classifier, (new, torch.zeros(12).long()), FeatureCache(None, classifier), "new"
    )
    on_features = head_of(classifier).predict(rows)
    torch.testing.assert_close(on_features.alpha0, fast.alpha0, rtol=1e-4, atol=1e-5)
    classifier.save(tmp_path / "m.daedl")
    again = daedl.Classifier.load(tmp_path / "m.daedl").predict(new)
    assert torch.equal(again.alpha0, fast.alpha0)


def test_second_run_with_another_method_and_split_needs_no_pass(tmp_path):
    inputs, labels = images()
    first = model(**TIED)
    counted = passes(first)
    daedl.fit_frozen(first, (inputs, labels), cache=tmp_path, **OPTIONS)
    assert sum(counted) >= 60
    second = model("edl")
    counted = passes(second)
    shuffled = torch.randperm(60)
    data = (inputs[shuffled], labels[shuffled])
    daedl.fit_frozen(second, data, cache=tmp_path, **OPTIONS)
    assert counted == []
    daedl.fit_frozen(second, data, cache=tmp_path, flip=True, **OPTIONS)
    assert sum(counted) == 60


@pytest.mark.parametrize("change", ["weights", "preprocess"])
def test_other_weights_or_preprocessing_have_other_features(tmp_path, change):
    daedl.fit_frozen(model("edl"), images(), cache=tmp_path, **OPTIONS)
    other = model("edl")
    if change == "weights":
        with torch.no_grad():
            other.network.extractor.top[0].weight.mul_(1.01)
    else:
        other.preprocess = daedl.Preprocess(3, (SIZE, SIZE), mean=(0.5,) * 3)
    counted = passes(other)
    daedl.fit_frozen(other, images(), cache=tmp_path, **OPTIONS)
    assert sum(counted) == 60


def test_damaged_cache_is_computed_again_with_a_warning(tmp_path):
    daedl.fit_frozen(model("edl"), images(), cache=tmp_path, **OPTIONS)
    (file,) = tmp_path.rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.warns(CacheWarning, match="computed again") as caught:
        daedl.fit_frozen(model("edl"), images(), cache=tmp_path, **OPTIONS)
    (message,) = [str(each.message) for each in caught if each.category is CacheWarning]
    assert message.count(str(file)) == 1
    assert "Classifier.save" not in message
    classifier = model("edl")
    counted = passes(classifier)
    daedl.fit_frozen(classifier, images(), cache=tmp_path, **OPTIONS)
    assert counted == []


def test_unwritable_cache_is_a_warning(tmp_path):
    (tmp_path / "features").write_text("a file where a folder is needed")
    with pytest.warns(CacheWarning, match="can't be cached"):
        daedl.fit_frozen(model("edl"), images(), cache=tmp_path, **OPTIONS)


def test_full_disk_is_a_warning_and_leaves_no_file(tmp_path):
    """Files are limited to 1 kB, less than the features of one image."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    classifier = model("edl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.warns(CacheWarning, match="can't be cached"):
            daedl.fit_frozen(classifier, images(), cache=tmp_path, **OPTIONS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(classifier.predict(images(6)[0])) == 6


def test_interrupted_extraction_keeps_what_was_computed(tmp_path, interrupting):
    inputs, labels = images()
    batches = list(zip(inputs.split(20), labels.split(20), strict=True))
    with pytest.raises(KeyboardInterrupt):
        daedl.fit_frozen(model("edl"), interrupting(batches, 2), cache=tmp_path, **OPTIONS)
    store = FeatureCache(tmp_path, model("edl"))
    assert len(store.rows) == 40


def test_no_cache_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("DAEDL_CACHE", str(tmp_path))
    assert default_folder() == tmp_path
    daedl.fit_frozen(model("edl"), images(), cache=None, **OPTIONS)
    assert list(tmp_path.iterdir()) == []
    daedl.fit_frozen(model("edl"), images(), **OPTIONS)
    assert list(tmp_path.rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["softmax", "f-edl", "natpn", "sngp", "ensemble", "knn"])
def test_heads_of_methods_are_part_of_the_model(tmp_path, method):
    classifier = model(method)
    daedl.fit_frozen(classifier, images(), images(30, 1), cache=tmp_path, **OPTIONS)
    new, labels = images(30, 2)
    prediction = classifier.predict(new)
    assert prediction.probs.shape == (30, 3)
    outputs, _ = classifier.collect((new, labels))
    assert torch.equal(classifier.predict_outputs(outputs).labels, prediction.labels)


@pytest.mark.parametrize("method", ["dropout", "kl-pn"])
def test_methods_that_need_images_are_rejected(method):
    with pytest.raises(ValueError, match=r"daedl\.fit"):
        daedl.fit_frozen(model(method, hidden=(8,)), images(), cache=None, **OPTIONS)


def test_other_networks_are_rejected():
    classifier = daedl.Classifier(ConvNet(3, 3, SIZE), "edl")
    with pytest.raises(TypeError, match="from_backbone"):
        daedl.fit_frozen(classifier, images(), cache=None, **OPTIONS)


def test_progress_states_an_estimate(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("daedl.training.frozen.MENTIONED", 0.0)
    daedl.fit_frozen(model("edl"), images(), cache=tmp_path, max_epochs=1)
    assert "features of the training data: about" in capsys.readouterr().out
