"""Batches from loaders, datasets and arrays contain every sample once."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import daedl
from daedl.networks import MLP


@pytest.fixture
def model():
    torch.manual_seed(0)
    return daedl.Classifier(MLP(4, 3, hidden=(8,)))


def test_loaders_that_shuffle_and_drop_are_read_completely(model, blobs):
    features, targets = (part[:300] for part in blobs)
    loader = DataLoader(TensorDataset(features, targets), 256, shuffle=True, drop_last=True)
    model.fit_post_hoc(loader)
    assert model.revisions[0].samples == 300
    _, found = model.collect(loader)
    assert torch.equal(found, targets)
    assert len(model.predict(loader)) == 300
    assert model.calibrate(loader, daedl.MaxRejectionRate(0.2)).samples == 300
    whole = daedl.Classifier(model.network, model.method).fit_post_hoc((features, targets))
    torch.testing.assert_close(
        whole.predict(features).log_density, model.predict(features).log_density
    )


@pytest.mark.parametrize("convert", [torch.as_tensor, torch.Tensor.numpy], ids=["torch", "numpy"])
def test_arrays_are_accepted_like_tensors(model, blobs, convert):
    data = tuple(convert(part) for part in blobs)
    daedl.fit(model, data, data, max_epochs=1, progress=False)
    model.fit_post_hoc(data)
    model.update_post_hoc(data)
    assert model.density_effect(data) is not None
    assert [each.samples for each in model.revisions] == [610, 610]


def test_tables_of_pandas_are_arrays(model, blobs):
    pandas = pytest.importorskip("pandas")
    features, targets = blobs
    table, column = pandas.DataFrame(features.numpy()), pandas.Series(targets.numpy())
    model.fit_post_hoc((table, column))
    assert torch.equal(model.collect((table, column))[1], targets)
    assert torch.equal(model.predict(table).labels, model.predict(features).labels)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x.astype(str), y), r"^inputs are .*expected numbers"),
        (lambda x, y: (x, y.astype(str)), r"^labels are .*expected numbers"),
        (lambda x, y: (x.astype(object), y), r"^inputs are object"),
        (lambda x, y: [(x, y.astype(str))], r"^labels of .*batch 0.* are .*expected numbers"),
    ],
)
def test_texts_in_the_place_of_numbers(model, blobs, change, message):
    with pytest.raises(TypeError, match=message):
        daedl.fit(model, change(*(each.numpy() for each in blobs)), max_epochs=1, progress=False)


@pytest.mark.parametrize("data", [3, None, "nowhere", b"bytes"])
def test_invalid_data_are_rejected(model, data):
    with pytest.raises((TypeError, ValueError), match="expected"):
        model.collect(data)


def test_iterators_are_rejected_for_training_only(model, blobs):
    batches = zip(blobs[0].split(100), blobs[1].split(100), strict=True)
    with pytest.raises(TypeError, match="only once"):
        daedl.fit(model, batches, max_epochs=1, progress=False)
    assert len(model.collect(batches)[1]) == 610
