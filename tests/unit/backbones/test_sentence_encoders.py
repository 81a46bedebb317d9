"""Sentence encoders: pooling, tokenisation, freezing and caching, with a tiny random BERT."""

import contextlib
import math
import socket
import threading

import numpy as np
import pytest
import torch

import daedl
from daedl import backbones
from daedl.data import TextPreprocess, TextSet, read_text_set
from daedl.training.feature_cache import FeatureCache
from daedl.training.frozen import features_of
from tiny_encoder import sentences, write_encoder

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def model(folder):
    torch.manual_seed(0)
    return daedl.Classifier.from_backbone(f"text:{folder}", 3).eval()


def test_features_are_normalised_means_over_the_mask(folder, model):
    texts = [text for text, _ in sentences(9)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    found = features_of(
        model, (texts, torch.zeros(9, dtype=torch.long)), FeatureCache(None, model), ""
    )
    for text, features in zip(texts, found[0], strict=True):
        with torch.no_grad():
            state = reference(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        mean = state.mean(0)
        expected = math.sqrt(len(mean)) * mean / mean.norm()
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)


def test_long_texts_are_cut_off_and_short_ones_padded(model):
    ids = model.prepare(["pay", "pay " * 50])
    assert ids["input_ids"].shape == (2, 16)
    assert ids["attention_mask"].sum(1).tolist() == [3, 16]
    assert ids["input_ids"][0, 3:].tolist() == [0] * 13
    kind = model.preprocess
    assert TextPreprocess(**{k: v for k, v in kind.settings().items() if k != "kind"}) == kind


def test_texts_of_a_scorer_that_are_empty_are_named_by_their_rows(folder, tmp_path):
    path = tmp_path / "model.daedl"
    daedl.Classifier.from_backbone(f"text:{folder}", 3, method="softmax").save(path)
    texts = np.array(["pay", "", None, " ", "rain"], object)
    with pytest.raises(ValueError, match=r"row 1 \(no text\), row 2 \(no text\), row 3 \(no text"):
        daedl.Scorer(path)(texts)
    marked = daedl.Scorer(path, skip_broken=True)(texts)
    assert [bool(each) for each in marked["error"]] == [False, True, True, True, False]
    with pytest.raises(ValueError, match=r"title, body .* one column of texts"):
        daedl.Scorer(path, column=["title", "body"])({"title": texts, "body": texts})


def test_features_are_cached_by_text(folder, model, tmp_path):
    data = (["pay", "rain sun", "pay"], torch.tensor([0, 1, 0]))
    first = features_of(model, data, FeatureCache(tmp_path, model), "")[0]
    store = FeatureCache(tmp_path, model)
    assert len(store.rows) == 2
    assert torch.equal(features_of(model, data, store, "")[0], first)
    torch.manual_seed(5)
    other = daedl.Classifier.from_backbone(f"text:{folder}", 5, hidden=(8,))
    assert (
        FeatureCache(tmp_path, other).rows.keys() == store.rows.keys()
    )  # the head is no part of the key


def test_the_head_equals_the_classifier(model):
    from daedl.training.frozen import head_of

    texts = [text for text, _ in sentences(5)]
    tokens = model.prepare(texts)
    with torch.no_grad():
        encoded = model.network.encode(tokens)
        whole, head = model.network(tokens), head_of(model).network(encoded)
    torch.testing.assert_close(whole.features, head.features)
    torch.testing.assert_close(whole.logits, head.logits)


def test_frozen_parameters_and_modules(model):
    network = model.network
    network.freeze("encoder.model.encoder.layer.2")
    trained = {name for name, each in network.named_parameters() if each.requires_grad}
    assert any("layer.2." in name for name in trained)
    assert not any("layer.1." in name or "embeddings" in name for name in trained)
    network.freeze()
    assert {n.split(".")[1] for n, p in network.named_parameters() if p.requires_grad} == {
        "dense1",
        "logits",
    }
    with pytest.raises(ValueError, match="backbone block"):
        network.freeze("encoder.model.nothing")


def test_a_trained_model_of_transformers_reads_texts(folder, model):
    config = transformers.AutoConfig.from_pretrained(folder, num_labels=3)
    torch.manual_seed(0)
    module = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    pairs = sentences(90)
    texts, labels = [text for text, _ in pairs], torch.arange(90) % 3
    wrapped = daedl.Classifier.from_module(module, "mean", preprocess=model.preprocess)
    wrapped.fit_post_hoc((texts, labels))
    tokens = wrapped.prepare(texts[:4])
    with torch.no_grad():
        expected = module(**tokens).logits
    assert torch.equal(wrapped.predict(texts[:4]).labels, expected.argmax(1))
    assert len(wrapped.predict(texts[0])) == 1


def test_unusable_encoders_are_explained(tmp_path):
    with pytest.raises(ValueError, match="can't be loaded"):
        backbones.pretrained(f"text:{tmp_path}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        TextPreprocess("no tokenizer").prepare(["a"], torch.zeros(1))


def test_text_sets(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text('query\tintent\n"two\nlines"\tb\nc\ta\n\tb\n', "utf-8")
    with pytest.raises(ValueError, match="line 5"):
        read_text_set(path, "query", "intent")
    texts = read_text_set(path, "query", "intent", skip_broken=True)
    assert (texts.texts, texts.labels.tolist(), texts.class_names) == (
        ["two\nlines", "c"],
        [1, 0],
        ("a", "b"),
    )
    assert texts.digest() != TextSet(["x", "c"], texts.labels, "x").digest()
    one, other = texts.random_split(1, 0)
    assert {*one.texts, *other.texts} == set(texts.texts)
    path.write_text('query\tintent\n"open\tb\n', "utf-8")
    with pytest.raises(ValueError, match="can't be read"):
        read_text_set(path, "query", "intent")


@pytest.mark.parametrize("prefix", ["hf", "text"])
def test_one_request_shows_that_the_hub_cant_be_reached(prefix, monkeypatch):
    """Instead of six with increasing delays, per file."""
    requests = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    requests.append(connection.recv(100))
                    connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        with pytest.raises(ValueError, match="can't be loaded"):
            backbones.pretrained(f"{prefix}:nobody/nothing")
        server.shutdown(socket.SHUT_RDWR)
    assert sum(each.startswith(b"HEAD") for each in requests) == 1
