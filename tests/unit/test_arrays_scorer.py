"""Scorer: arrays in, arrays out, as engines call it."""

import pickle
from functools import partial
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import daedl
from daedl.networks import MLP, ConvNet


def pictures(number, seed=0):
    """Noisy images (N, 1, 8, 8) with a bright band per class, and classes (N,)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    images = torch.randint(0, 110, (number, 1, 8, 8), generator=generator)
    for c in range(3):
        images[labels == c, :, 2 * c : 2 * c + 3] += 110
    return images.to(torch.uint8), labels


def encoded(pixels):
    buffer = BytesIO()
    Image.fromarray(pixels[0].numpy()).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A calibrated model of images."""
    torch.manual_seed(0)
    model = daedl.Classifier(ConvNet(1, 3, image_size=8, channels=4), class_names=["a", "b", "c"])
    model.fit_post_hoc(pictures(90))
    model.calibrate(pictures(60, seed=1), daedl.MaxRejectionRate(0.3))
    path = tmp_path_factory.mktemp("scorer") / "model.daedl"
    model.save(path)
    return path


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """A model of vectors, with its data."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(60, 4), torch.arange(60) % 2
    model = daedl.Classifier(MLP(4, 2, (8,))).fit_post_hoc((inputs, labels))
    path = tmp_path_factory.mktemp("vectors") / "model.daedl"
    model.save(path)
    return path, inputs.numpy()


def test_arrays_are_the_columns_of_records(path):
    images, _ = pictures(50, seed=2)
    prediction = daedl.Classifier.load(path).predict(images)
    assert not prediction.accept.all()  # so that there are reasons
    arrays = daedl.Scorer(path)({"image": images.numpy()})
    records = prediction.records()
    assert set(arrays) == set(records[0]) - {"probs"}
    for name, values in arrays.items():
        assert values.tolist() == [record[name] for record in records], name


def test_a_pickle_has_path_and_settings_but_no_model(path):
    scorer = daedl.Scorer(path, outputs=["label"])
    before = len(pickle.dumps(scorer))
    images = pictures(5)[0].numpy()
    expected = scorer(images)
    assert len(pickle.dumps(scorer)) == before < 1000
    copy = pickle.loads(pickle.dumps(scorer))
    assert "model" not in vars(copy)
    assert copy(images)["label"].tolist() == expected["label"].tolist()


@pytest.mark.parametrize(
    "convert",
    [
        lambda images: images.flatten(1).numpy(),  # as Spark and Parquet store tensors
        lambda images: images.flatten(1).short().numpy(),
        lambda images: images[:, 0].numpy(),
        lambda images: images.movedim(1, -1).numpy(),
        lambda images: np.array([*images[:, 0].numpy(), None], dtype=object)[:-1],
        lambda images: np.array([encoded(each) for each in images], dtype=object),
        lambda images: np.array([{"bytes": encoded(each), "path": None} for each in images]),
    ],
)
def test_forms_of_images(path, convert):
    images, _ = pictures(7)
    expected = daedl.Classifier.load(path).predict(images)
    column = convert(images)
    column.flags.writeable = False  # as arrays in an engine's shared memory
    arrays = daedl.Scorer(path, outputs=["probs", "log_density"])({"image": column})
    # Not bit for bit: convolutions round differently with another layout in memory.
    assert np.allclose(arrays["probs"], expected.probs.numpy(), rtol=1e-5)
    assert np.allclose(arrays["log_density"], expected.log_density.numpy(), rtol=1e-5)


def test_paths_of_images(path, tmp_path):
    images, _ = pictures(3)
    for number, each in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(encoded(each))
    column = np.array([str(tmp_path / f"{number}.png") for number in range(3)])
    expected = daedl.Classifier.load(path).predict(images)
    assert daedl.Scorer(path)(column)["epistemic"].tolist() == expected.epistemic.tolist()


def test_columns_of_numbers_are_joined(vectors):
    path, inputs = vectors
    batch = {f"x{number}": inputs[:, number] for number in range(4)} | {"id": np.arange(60)}
    arrays = daedl.Scorer(path, column=["x0", "x1", "x2", "x3"])(batch)
    expected = daedl.Classifier.load(path).predict(inputs)
    assert arrays["epistemic"].tolist() == expected.epistemic.tolist()
    with pytest.raises(ValueError, match="columns x0"):
        daedl.Scorer(path)(batch)
    with pytest.raises(ValueError, match=r"x0, id .* one number per row"):
        daedl.Scorer(path, column=["x0", "id"])({"x0": inputs[:2, 0], "id": np.array(["a", "b"])})
    with pytest.raises(ValueError, match="no column y"):
        daedl.Scorer(path, column="y")(batch)
    with pytest.raises(ValueError, match="did you mean 'label'"):
        daedl.Scorer(path, outputs=["labels"])(inputs)


def test_broken_images_are_marked_or_rejected(path):
    images, _ = pictures(4)
    cells = np.array([*map(encoded, images[:3]), b"no image", None, encoded(images[3])], object)
    arrays = daedl.Scorer(path, skip_broken=True)({"image": cells})
    assert [bool(text) for text in arrays["error"]] == [False, False, False, True, True, False]
    assert arrays["error"][3] == "unknown format"
    assert arrays["label"][[3, 4]].tolist() == [-1, -1]
    assert not arrays["accept"][[3, 4]].any()
    assert np.isnan(arrays["probability"][[3, 4]]).all()
    alone = daedl.Scorer(path)(images.numpy())
    assert np.allclose(arrays["log_density"][[0, 1, 2, 5]], alone["log_density"], rtol=1e-5)
    with pytest.raises(ValueError, match=r"row 3 \(unknown format"):
        daedl.Scorer(path)({"image": cells})


def test_broken_vectors_are_marked_or_rejected(vectors):
    path, inputs = vectors
    rows = [*inputs[:3], None, inputs[3] * np.nan, inputs[4, :2], inputs[5]]
    cells = np.empty(len(rows), dtype=object)
    cells[:] = rows
    arrays = daedl.Scorer(path, skip_broken=True)({"vector": cells})
    errors = ["", "", "", "no value", "NaN", "shape", ""]
    assert all(part in text for part, text in zip(errors, arrays["error"], strict=True))
    assert [bool(text) for text in arrays["error"]] == [bool(each) for each in errors]
    with pytest.raises(ValueError, match=r"row 3 \(no value"):
        daedl.Scorer(path)({"vector": cells})


def test_a_batch_without_a_readable_input(path):
    arrays = daedl.Scorer(path, skip_broken=True)(np.array([b"", b"x"], dtype=object))
    assert arrays["label"].tolist() == [-1, -1]
    assert arrays["class_name"].tolist() == ["", ""]


def test_images_for_a_model_of_vectors(vectors):
    with pytest.raises(ValueError, match="no preprocessing"):
        daedl.Scorer(vectors[0])(np.array(["a.png"]))


def test_your_own_module(tmp_path):
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    model = daedl.Classifier.from_module(net, "1", input_shape=(4,))
    model.fit_post_hoc((torch.randn(40, 4), torch.arange(40) % 2))
    model.save(tmp_path / "model.daedl")
    load = partial(daedl.Classifier.load, network=model.network)
    inputs = torch.randn(5, 4)
    arrays = daedl.Scorer(tmp_path / "model.daedl", load=load)(inputs.numpy())
    assert arrays["epistemic"].tolist() == model.predict(inputs).epistemic.tolist()


@pytest.mark.parametrize("none", [np.zeros((0, 4), np.float32), np.array([], object)])
def test_no_rows_are_empty_arrays(vectors, none):
    path, inputs = vectors
    expected = daedl.Scorer(path)(inputs)
    found = daedl.Scorer(path)({"features": none})
    assert [(name, len(each), each.dtype) for name, each in found.items()] == [
        (name, 0, each.dtype) for name, each in expected.items()
    ]


def test_the_form_that_spark_wants(path, vectors):
    """`predict_batch_udf` pickles a function that builds the predictor, which gets one array of a batch.

    The predictor returns a dict with the fields of the StructType and no others, arrays of as many rows, in
    one dimension for numbers and strings.
    """
    fields = ["class_name", "label", "probability", "reason"]
    build = pickle.loads(pickle.dumps(partial(daedl.Scorer, path, outputs=fields)))
    predict = build()
    images, _ = pictures(50, seed=2)
    for rows in (50, 3, 1):
        found = predict(images[:rows].flatten(1).numpy())
        assert list(found) == fields
        assert {each.shape for each in found.values()} == {(rows,)}
        assert [each.dtype.kind for each in found.values()] == ["O", "i", "f", "O"]
    assert all(isinstance(each, str) for name in ("class_name", "reason") for each in found[name])
    wide = daedl.Scorer(vectors[0], outputs=["probs"])(vectors[1])  # an ArrayType
    assert wide["probs"].shape == (60, 2)
