"""The evaluation report: its figures, and its behaviour for few and many classes."""

import re
import warnings
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import confusion_matrix

import daedl
from daedl import figures
from daedl.data import ImageSet
from daedl.networks import ConvNet
from daedl.prediction import Prediction
from daedl.report import html
from daedl.report.evaluation import Evaluated, render

LARGEST = 1_000_000  # bytes


def dataset(classes: int, number: int, shape: tuple[int, ...] = (1, 8, 8)) -> ImageSet:
    names = tuple(f"<i>class</i> ${each}$" for each in range(classes))
    images = torch.randint(256, (number, *shape), dtype=torch.uint8)
    return ImageSet(images, torch.arange(number) % classes, "made", "test", names)


def predictions(classes: int, number: int, evidence: float = 1.0) -> Prediction:
    log_alpha = evidence * torch.randn(number, classes)
    p = Prediction.from_dirichlet(log_alpha, log_density=torch.randn(number))
    return replace(p, class_names=[str(each) for each in range(classes)])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def model() -> daedl.Classifier:
    return daedl.Classifier(ConvNet(1, 3, 8, channels=2), "edl")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "calibrated"), [(2, False), (12, True), (13, False), (1000, True)]
)
def test_any_number_of_classes(model, classes, calibrated):
    data, p = dataset(classes, 2 * classes + 20), predictions(classes, 2 * classes + 20)
    other = predictions(classes, 30, evidence=0.1)
    if calibrated:
        thresholds = daedl.MaxRejectionRate(0.2).choose(p.scores(), p.labels != data.labels)
        p, other = replace(p, thresholds=thresholds), replace(other, thresholds=thresholds)
    unknown = Evaluated("其他", dataset(classes, 30), other)
    page = render("m.daedl", model, Evaluated("a$b", data, p), unknown)
    assert ("Confusion matrix" in page) == (classes <= 12)
    assert ("Most frequent confusions" in page) == (classes > 12)
    assert ("no thresholds" in page) == (not calibrated)
    assert "&lt;i&gt;class" in page
    assert "<i>" not in page
    assert len(page) < LARGEST
    assert not re.search(r"https?://|@import|url\(|<script|<link", page)
    if calibrated:
        assert f"{100 * float(other.accept.double().mean()):.1f}%" in page


def test_confusion_matrix_and_class_accuracy(model):
    data, p = dataset(3, 50), predictions(3, 50)
    page = render("m.daedl", model, Evaluated("test", data, p))
    cells = re.findall(r"<td style=[^>]*>(\d*)</td>", page)
    expected = confusion_matrix(data.labels, p.labels)
    assert [int(cell or 0) for cell in cells] == expected.ravel().tolist()
    accuracy = expected.diagonal() / expected.sum(1)
    for value in accuracy:
        assert f"<td>{100 * value:.1f}%</td>" in page


def test_a_method_with_probabilities_only_and_no_errors(model):
    data = dataset(2, 20)
    p = Prediction.from_probs(torch.eye(2)[data.labels] * 0.8 + 0.1)
    page = render("m.daedl", model, Evaluated("test", data, p))
    assert "100.0%" in page
    assert "Most confident errors" not in page
    assert "largest aleatoric uncertainty" in page
    assert "by epistemic" not in page


def test_sheets_show_the_most_confident_errors_first(model):
    data, p = dataset(3, 60), predictions(3, 60)
    page = render("m.daedl", model, Evaluated("test", data, p))
    sheet = page.partition("Most confident errors")[2].partition("</ul>")[0]
    shown = [float(each) for each in re.findall(r"(\d+\.\d)%", sheet)]
    confidence = p.probs.max(-1).values[p.labels != data.labels]
    expected = confidence.sort(descending=True).values[:16]
    assert shown == pytest.approx((100 * expected).tolist(), abs=0.051)


@pytest.mark.parametrize(
    ("shape", "kind", "size"),
    [
        ((1, 8, 8), "PNG", (8, 8)),
        ((3, 64, 48), "JPEG", (48, 64)),
        ((3, 300, 600), "JPEG", (96, 48)),
    ],
)
def test_thumbnails(shape, kind, size):
    image = torch.full(shape, 200, dtype=torch.uint8)
    with Image.open(BytesIO(b64decode(html.thumbnail(image).partition(",")[2]))) as opened:
        assert opened.format == kind
        assert opened.size == size
        assert np.abs(np.asarray(opened).astype(int) - 200).max() <= 2


def test_histograms_show_extreme_and_constant_scores():
    scores = {"known": torch.linspace(0, 1, 100), "far": torch.full((50,), 1e30)}
    known, far = figures.score_histograms(scores, "epistemic", 0.5).axes
    assert known.get_xlim()[1] < 3
    for axes in (known, far):
        assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(1)
    constant = {"known": torch.zeros(5)}
    (axes,) = figures.score_histograms(constant, "aleatoric", None).axes
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(1)
