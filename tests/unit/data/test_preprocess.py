"""Preprocessing: formula, accepted inputs, model files and exported graphs."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import daedl
from daedl import storage
from daedl.data import DataWarning, ImageSet, Preprocess
from daedl.networks import MLP, ConvNet

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture(scope="module")
def pixels():
    """60 images (3, 8, 8) of three classes that differ in colour, uint8."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 80, (60, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.arange(60) % 3
    images[torch.arange(60), labels] += 150
    return images, labels


@pytest.fixture(scope="module")
def model(pixels):
    torch.manual_seed(0)
    network = ConvNet(3, 3, image_size=8, channels=8)
    model = daedl.Classifier(
        network, "softmax", ["red", "green", "blue"], Preprocess(3, 8, mean=MEAN, std=STD)
    )
    daedl.fit(model, pixels, max_epochs=15, batch_size=10, progress=False)
    assert (model.predict(pixels[0]).labels == pixels[1]).all()
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_formula(dtype):
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    mean, std = (torch.tensor(each, dtype=torch.float64).view(3, 1, 1) for each in (MEAN, STD))
    expected = ((images.double() / 255 - mean) / std).to(dtype)
    preprocess = Preprocess(3, 8, mean=MEAN, std=STD)
    for raw in (images, images.double() / 255):
        found = preprocess(raw, dtype)
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected)


def test_all_forms_of_images_give_the_same_prediction(model, pixels):
    images, labels = pixels
    expected = model.predict(images)
    channels_last = images.permute(0, 2, 3, 1).numpy()
    pictures = [Image.fromarray(each) for each in channels_last]
    forms = {
        "numpy": images.numpy(),
        "channels last": channels_last,
        "pictures": pictures,
        "image set": ImageSet(images, labels, "colours", "test"),
        "loader": DataLoader(TensorDataset(images, labels), 7),
        "dataset": TensorDataset(images, labels),
        "batches without labels": list(images.split(16)),
    }
    for name, data in forms.items():
        assert model.predict(data).labels.equal(expected.labels), name
        torch.testing.assert_close(model.predict(data).probs, expected.probs, msg=name)
    for floats in (images / 255, images.double().numpy() / 255):
        torch.testing.assert_close(model.predict(floats).probs, expected.probs)


def test_single_images(model, pixels):
    image = pixels[0][4]
    expected = model.predict(image[None])
    last = image.permute(1, 2, 0).numpy()
    for one in (image, image / 255, last, Image.fromarray(last)):
        prediction = model.predict(one)
        assert len(prediction) == 1
        torch.testing.assert_close(prediction.probs, expected.probs)


def test_grey_images_need_no_channel_axis():
    model = daedl.Classifier(ConvNet(1, 2, image_size=8, channels=4), "softmax")
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    for form in (images[:, 0], images[:, 0].numpy(), images[:, 0, :, :, None]):
        torch.testing.assert_close(model.predict(form).probs, model.predict(images).probs)
    assert len(model.predict(images[0, 0])) == 1


def test_arrays_of_another_size_are_rejected_and_pictures_recommended(model, pixels):
    smaller = pixels[0][..., 1:]
    for data in (smaller, [(smaller, torch.zeros(len(smaller)))]):
        with pytest.raises(ValueError, match="paths, which are resized"):
            model.predict(data)
    with pytest.raises(ValueError, match="reshape") as caught:
        daedl.Classifier(MLP(4, 3), "edl").predict(torch.zeros(2, 3))
    assert "PIL" not in str(caught.value)


def test_paths_and_folders(model, pixels, tmp_path):
    images = pixels[0][:6]
    for number, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    expected = model.predict(images).probs
    torch.testing.assert_close(model.predict(tmp_path).probs, expected)
    torch.testing.assert_close(model.predict(str(tmp_path / "2.png")).probs, expected[2:3])
    paths = [tmp_path / "3.png", tmp_path / "1.png"]
    torch.testing.assert_close(model.predict(paths).probs, expected[[3, 1]])


def test_folders_with_class_names(model, pixels, tmp_path):
    for name, number in (("green", 1), ("red", 0)):
        (tmp_path / name).mkdir()
        for place in range(number, 60, 3):
            image = pixels[0][place].permute(1, 2, 0).numpy()
            Image.fromarray(image).save(tmp_path / name / f"{place}.png")
    _, targets = model.collect(tmp_path)
    # Folders are sorted by name; labels are the model's.
    assert targets.tolist() == [1] * 20 + [0] * 20
    assert model.calibrate(tmp_path, daedl.MaxRejectionRate(0.2)).samples == 40
    model.thresholds = None


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((2, 3, 8, 8), 200.0), "divide them by"),
        (torch.randn(2, 3, 8, 8), "preprocess=None"),
    ],
)
def test_floats_out_of_range_are_rejected(model, images, message):
    labels = torch.tensor([0, 1])
    for call in (
        lambda: model.predict(images),
        lambda: model.collect((images, labels)),
        lambda: daedl.fit(model, (images, labels), max_epochs=1, progress=False),
        lambda: model(images),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_without_preprocessing_inputs_are_unchanged(pixels):
    model = daedl.Classifier(ConvNet(3, 3, 8, channels=4), "softmax", preprocess=None)
    inputs = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(
        model.predict(inputs).probs, model.network(inputs).logits.softmax(-1)
    )
    with pytest.raises(TypeError, match="no preprocessing"):
        model.predict(pixels[0])
    with pytest.raises(ValueError, match="can't read pictures"):
        model.predict(Image.new("RGB", (8, 8)))


def test_vectors_have_no_preprocessing():
    assert daedl.Classifier(MLP(4, 3), "softmax").preprocess is None


def test_saved_and_loaded_with_the_model(model, pixels, tmp_path):
    model.save(tmp_path / "model.daedl")
    twin = daedl.Classifier.load(tmp_path / "model.daedl")
    assert twin.preprocess == model.preprocess
    assert twin.predict(pixels[0]) == model.predict(pixels[0])


def test_files_of_format_1_load_with_a_warning(model, pixels, tmp_path):
    path = tmp_path / "model.daedl"
    model.save(path)
    tensors, description = storage.load(path)
    del description["preprocess"]
    description["format"] = 1
    text = json.dumps({**description, "sha256": storage._digest(tensors, description)})
    path.write_bytes(safetensors.torch.save(tensors, {"daedl": text}))
    with pytest.warns(DataWarning, match="divided by 255"):
        old = daedl.Classifier.load(path)
    assert old.preprocess == Preprocess(3, 8)


def test_exported_graphs_take_pixels(model, pixels):
    from daedl.export import to_torch_export

    graph = to_torch_export(model).module()
    torch.testing.assert_close(graph(pixels[0])["probs"], model.predict(pixels[0]).probs)


@pytest.mark.parametrize(("resize", "low", "high"), [("stretch", 0, 255), ("crop", 100, 156)])
def test_resize_rules(resize, low, high):
    # Twice as wide as high: black, grey, grey, white. Cropping removes the ends.
    row = np.repeat(np.uint8([0, 128, 128, 255]), 4)
    wide = Image.fromarray(np.tile(row, (8, 1)))
    pixels = Preprocess(1, 4, resize=resize).picture(wide).float()
    assert pixels.shape == (1, 4, 4)
    assert abs(pixels.min() - low) < 20
    assert abs(pixels.max() - high) < 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"channels": 0}, "channels is 0"),
        ({"size": (8, 0)}, "size is 0"),
        ({"resize": "squash"}, "'stretch' or 'crop'"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"mean": (0.5,)}, "1 values for 3 channel"),
        ({"std": (0.5, 0.5, 0.0)}, "std of a channel is 0.0"),
    ],
)
def test_arguments_are_validated(arguments, message):
    with pytest.raises(ValueError, match=message):
        Preprocess(**{"channels": 3, "size": 8, **arguments})


def test_shape_must_match_the_network():
    with pytest.raises(ValueError, match="same channels and size"):
        daedl.Classifier(ConvNet(1, 2, image_size=8), preprocess=Preprocess(1, 16))


def test_ensembles_keep_the_preprocessing_of_their_members(model, pixels):
    other = daedl.Classifier(ConvNet(3, 3, 8, channels=8), "softmax", model.class_names)
    with pytest.raises(ValueError, match="preprocessing"):
        daedl.ensemble([model, other])
    assert daedl.ensemble([model, model]).preprocess == model.preprocess
