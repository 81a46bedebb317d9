"""Predictions: fields, scores, selection and conversion."""

import json
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch

from daedl.prediction import Prediction
from daedl.selective import MaxRejectionRate, Thresholds

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)


def test_from_dirichlet():
    p = Prediction.from_dirichlet(LOGITS)
    assert p.labels.tolist()[0] == 0
    assert float(p.alpha[0].sum()) == pytest.approx(8.75694, abs=5e-6)
    torch.testing.assert_close(p.epistemic, -LOGITS.exp().sum(-1).log())
    torch.testing.assert_close(p.aleatoric, 1 - LOGITS.softmax(-1).max(-1).values)
    assert p.aleatoric[1] > p.aleatoric[0]
    assert p.epistemic[1] > p.epistemic[0]
    assert set(p.scores()) == {"aleatoric", "epistemic"}
    assert len(p) == 2


def test_nearly_certain_predictions_do_not_tie():
    logits = torch.tensor([[30.0, 0.0], [31.0, 0.0], [60.0, 0.0]])
    aleatoric = Prediction.from_probs(logits.softmax(-1)).aleatoric
    assert (aleatoric.diff() < 0).all()


def test_probabilities_have_no_dirichlet():
    p = Prediction.from_probs(LOGITS.softmax(-1))
    assert p.epistemic is None
    with pytest.raises(ValueError, match="Dirichlet"):
        _ = p.alpha


def test_aleatoric_score_of_the_method_is_kept():
    own = torch.tensor([0.3, 0.1])
    assert Prediction.from_probs(LOGITS.softmax(-1), aleatoric=own).aleatoric is own


def test_cat_joins_every_field():
    one = Prediction.from_dirichlet(LOGITS, density_score=torch.ones(2), log_density=torch.zeros(2))
    both = Prediction.cat([one, one])
    assert len(both) == 4
    assert both.density_score.shape == both.log_density.shape == both.epistemic.shape == (4,)
    assert Prediction.cat([Prediction.from_probs(LOGITS.softmax(-1))] * 2).log_alpha is None
    with pytest.raises(ValueError, match="no predictions"):
        Prediction.cat([])


def test_density_is_a_score_too():
    p = Prediction.from_dirichlet(LOGITS, log_density=torch.tensor([5.0, -5.0]))
    assert p.scores()["density"].tolist() == [-5.0, 5.0]


def test_nan_is_rejected():
    with pytest.raises(ValueError, match="1 of 6"):
        Prediction.from_dirichlet(
            LOGITS.index_fill(0, torch.tensor([0]), 0).index_put(
                (torch.tensor([1]), torch.tensor([2])), torch.tensor(float("nan")).double()
            )
        )


def test_averages_of_nearly_certain_predictions_do_not_tie():
    """p = 1 − 1e-9 rounds to 1 in float32, but the remainder does not round to 0."""
    rest = torch.tensor([1e-9, 1e-12])
    probs = torch.stack([torch.ones(2), rest, torch.zeros(2)], -1)[:, None].expand(2, 2, 3)
    p = Prediction.from_several(probs)
    torch.testing.assert_close(p.aleatoric, rest)
    assert p.epistemic.tolist() == [0, 0]  # both agree
    one, other = torch.tensor([1.0, 1e-9, 0.0]), torch.tensor([1.0, 3e-9, 0.0])
    p = Prediction.from_several(torch.stack([one, other])[None])
    with mpmath.workdps(40):
        sets = [[1 - mpmath.mpf(e), mpmath.mpf(e)] for e in (1e-9, 3e-9)]
        mean = [(a + b) / 2 for a, b in zip(*sets, strict=True)]
        expected = (
            sum(q * mpmath.log(q / m) for s in sets for q, m in zip(s, mean, strict=True)) / 2
        )
    assert float(p.epistemic) == pytest.approx(float(expected), rel=1e-3)


@pytest.fixture
def calibrated():
    thresholds = Thresholds({"epistemic": -1.5}, MaxRejectionRate(0.1), 10, 0.9, 0.0)
    p = Prediction.from_dirichlet(LOGITS, density_score=torch.tensor([0.9, 0.1]))
    return replace(p, thresholds=thresholds, class_names=["a", "b", "c"])


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (1, [1]),
        (-2, [0]),
        (np.int64(1), [1]),
        (np.array(-1), [1]),
        (torch.tensor(1), [1]),
        (torch.tensor([1]), [1]),
        (range(1, 2), [1]),
        (np.array([True, False]), [0]),
        (slice(None, None, 2), [0]),
        (torch.tensor([False, True]), [1]),
        (torch.tensor([1, 0]), [1, 0]),
        ([1], [1]),
    ],
)
def test_indexing_selects_inputs(calibrated, index, expected):
    part = calibrated[index]
    assert torch.equal(part.probs, calibrated.probs[expected])
    assert torch.equal(part.density_score, calibrated.density_score[expected])
    assert part.reason == [calibrated.reason[i] for i in expected]
    assert part.class_names == calibrated.class_names


@pytest.mark.parametrize(
    "index", [None, ..., (0, 1), 1.0, "probs", torch.zeros(2, 1).bool()], ids=repr
)
def test_indices_that_do_not_select_inputs_are_rejected(calibrated, index):
    with pytest.raises(TypeError, match="expected an integer, a slice, a mask"):
        calibrated[index]


@pytest.mark.parametrize("index", [2, np.int64(2), torch.tensor(2)])
def test_index_out_of_range(calibrated, index):
    with pytest.raises(IndexError):
        calibrated[index]
    assert [len(each) for each in calibrated] == [1, 1]


def test_equality(calibrated):
    assert calibrated == replace(calibrated)
    assert calibrated == calibrated[:]
    assert calibrated != calibrated[:1]
    assert calibrated != replace(calibrated, density_score=None)
    assert calibrated != replace(calibrated, class_names=None)
    assert calibrated != replace(calibrated, probs=calibrated.probs + 1e-9)
    assert calibrated != "prediction"


def test_to_converts_all_tensors_but_labels(calibrated):
    single = calibrated.to(torch.float32)
    assert single.probs.dtype == single.log_alpha.dtype == torch.float32
    assert single.labels.dtype == torch.int64
    assert calibrated.to("meta").probs.device.type == "meta"


def test_public_names(calibrated):
    names = ["label", "probs", "aleatoric", "epistemic", "log_alpha", "alpha0", "density_score"]
    assert list(calibrated.columns()) == [*names, "accept"]
    arrays = calibrated.numpy()
    assert isinstance(arrays["alpha0"], np.ndarray)
    np.testing.assert_allclose(arrays["alpha0"], LOGITS.exp().sum(-1))
    lists = calibrated.to_dict()
    assert lists["class_name"] == ["a", "a"]
    assert lists["reason"] == calibrated.reason
    assert json.loads(json.dumps(lists)) == lists


def test_records(calibrated):
    first, second = calibrated.records()
    assert first["class_name"] == "a"
    assert first["probability"] == first["probs"]["a"] == float(calibrated.probs[0, 0])
    assert (first["accept"], second["accept"]) == (True, False)
    assert second["reason"] == "unlike the training data"
    huge = Prediction.from_dirichlet(torch.tensor([[1e4, 0.0]])).records()[0]
    assert np.isfinite(huge["alpha0"])
    json.dumps(huge, allow_nan=False)


def test_frames_have_one_row_per_input(calibrated):
    frame = calibrated.to_frame()
    assert frame["probs.b"].tolist() == calibrated.probs[:, 1].tolist()
    assert frame["accept"].tolist() == [True, False]
