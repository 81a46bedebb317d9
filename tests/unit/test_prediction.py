"""What a prediction holds, and that larger scores always mean less certain."""

import mpmath
import pytest
import torch

from daedl.prediction import Prediction

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
    with pytest.raises(ValueError, match="probabilities, not a Dirichlet"):
        _ = p.alpha


def test_a_methods_own_aleatoric_score():
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


def test_not_a_number_is_never_hidden():
    with pytest.raises(ValueError, match=r"log_alpha: 1 of 6 values are NaN"):
        Prediction.from_dirichlet(
            LOGITS.index_fill(0, torch.tensor([0]), 0).index_put(
                (torch.tensor([1]), torch.tensor([2])), torch.tensor(float("nan")).double()
            )
        )


def test_several_that_are_nearly_sure_do_not_tie():
    """p = 1 − 1e-9 is 1 in float32; what is left for the others tells how sure it is."""
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
