"""Pictures of the report, from small networks in a cache and from rows."""

import io
import shutil

import numpy as np
import pytest
import torch
from made import row
from made import stripes as load
from pandas import DataFrame
from sklearn.metrics import auc

from daedl import figures, metrics, storage
from daedl.prediction import Prediction
from daedl_bench import cache as caching
from daedl_bench import report
from daedl_bench.cache import Cache
from daedl_bench.datasets import corrupted_sets
from daedl_bench.report import pictures, plots
from daedl_bench.report.plots import Uncertainties
from daedl_bench.runner import run
from daedl_bench.spec import catalogue
from daedl_bench.summary import Results
from daedl_bench.workspace import Workspace

SPEC = """
[protocol.stripes-tiny]
title = "two epochs of a small network"
data = "stripes"
split = [240, 60]
network = { name = "ConvNet", in_channels = 1, num_classes = 3, image_size = 8, channels = 4 }
training = { max_epochs = 2, batch_size = 32, learning_rate = 1e-3 }

[method]
softmax = { name = "softmax" }
daedl = { name = "daedl", leave_one_out = false }
daedl-loo = { name = "daedl", leave_one_out = true }

[experiment.stripes-ood]
title = "Stripes against other things"
protocols = { tiny = "stripes-tiny" }
methods = ["softmax", "daedl", "daedl-loo"]
test = "stripes"
ood = ["dots", "blots"]

[experiment.stripes-shift]
title = "Stripes against corruptions"
protocols = { tiny = "stripes-tiny" }
methods = ["softmax", "daedl"]
test = "stripes"
shift = "mnist-c"

[experiment.stripes-severity]
title = "Stripes against corruptions of five severities"
protocols = { tiny = "stripes-tiny" }
methods = ["softmax", "daedl"]
test = "stripes"
shift = "cifar10-c"
"""
CATALOGUE = catalogue(SPEC)
CURVES = {f"stripes-tiny-{kind}-{name}" for kind in ("roc", "pr") for name in ("dots", "blots")}
OTHERS = ("density-daedl", "density-daedl-loo", "reliability")
NAMES = CURVES | {f"stripes-tiny-{name}" for name in OTHERS}
COMMAND = "python -m daedl_bench run stripes-ood --protocol tiny --methods {} --seeds 0"


def nowhere(name, split):
    raise FileNotFoundError(f"no {name}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with results and a cache of three methods, two of which share their network."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "results").mkdir()
    workspace, rows = Workspace(load, Cache(folder / "cache")), folder / "results" / "rows.jsonl"
    assert run(CATALOGUE, "stripes-ood", workspace, rows, seeds=[0, 1]) == []
    return folder


@pytest.fixture
def cache(trained, tmp_path):
    """A copy of the cache to damage."""
    return shutil.copytree(trained / "cache", tmp_path / "cache")


def gallery(trained, cache, load=nowhere):
    found = Results.load(trained / "results", CATALOGUE)
    (only,) = pictures.of_networks(found, cache, load)
    return only, {each.name for each in only.pictures}


def without(cache, seeds):
    """Delete the softmax networks of `seeds`."""
    for seed in seeds:
        trial = CATALOGUE.trial("softmax", CATALOGUE.protocols["stripes-tiny"], seed)
        shutil.rmtree(cache / trial.network_key)


def test_pictures_come_from_the_cache_and_are_part_of_the_html(trained, tmp_path):
    arguments = {"catalogue": CATALOGUE, "cache": trained / "cache", "load": nowhere}
    path = report.write(trained / "results", tmp_path / "out", **arguments)
    assert {each.stem for each in path.parent.glob("*.png")} == NAMES
    html, markdown = path.read_text(), path.with_suffix(".md").read_text()
    assert html.count('<img src="data:image/png;base64,') == html.count("<img") == len(NAMES)
    assert html.count('width="480"') == len(NAMES)  # five inches
    assert all(f"({name}.png)" in markdown for name in NAMES)
    for text in (html, markdown):
        assert "stripes, tiny protocol, seed 0" in text
        assert str(trained) not in text


def test_without_a_cache_nothing_is_trained_and_none_is_created(trained, tmp_path):
    only, drawn = gallery(trained, tmp_path / "elsewhere")
    assert drawn == set()
    assert not (tmp_path / "elsewhere").exists()
    assert only.notes[-1].strip() == f"{COMMAND.format('softmax,daedl,daedl-loo')} --networks"


def test_a_cache_is_only_read(trained, cache, monkeypatch):
    """Also if outputs are missing, and locks cannot be created."""

    def fail(*_):
        raise OSError("cannot write")

    monkeypatch.setattr(storage, "write_atomically", fail)
    monkeypatch.setattr(caching, "write_atomically", fail)
    for path in [*cache.glob("*/dots.safetensors"), *cache.glob("*/.lock")]:
        path.unlink()
    before = sorted(cache.rglob("*"))
    assert gallery(trained, cache, load)[1] == NAMES
    assert sorted(cache.rglob("*")) == before


def test_methods_without_a_network_are_named(trained, cache):
    without(cache, (0, 1))
    only, drawn = gallery(trained, cache)
    assert "stripes-tiny-reliability" in drawn
    assert "Softmax" in only.notes[0]
    assert only.notes[1].strip() == f"{COMMAND.format('softmax')} --networks"


def test_the_seed_with_the_most_networks_is_drawn(trained, cache):
    without(cache, (0,))
    only, drawn = gallery(trained, cache)
    assert only.title == "stripes, tiny protocol, seed 1"
    assert drawn == NAMES


def test_a_protocol_without_rows_names_its_command(tmp_path):
    (only,) = pictures.of_networks(Results(CATALOGUE, ()), tmp_path, nowhere)
    assert only.notes[-1].strip() == COMMAND.format("softmax,daedl,daedl-loo")


def test_missing_outputs_are_noted_and_the_rest_is_drawn(trained, cache):
    for path in cache.glob("*/dots.safetensors"):
        path.unlink()
    only, drawn = gallery(trained, cache)
    assert drawn == {name for name in NAMES if not name.endswith("-dots")}
    assert len(only.notes) == 3
    assert only.notes[0].startswith("Softmax on dots is left out: its outputs are not in the cache")
    assert gallery(trained, cache, load)[1] == NAMES  # computed again from the images


def test_the_legend_of_many_methods_fits_into_the_reliability_diagram():
    drawn = catalogue().experiment("mnist-ood").drawn
    prediction = Prediction.from_probs(torch.full((20, 10), 0.1))
    figure = figures.reliability_diagram(dict.fromkeys(drawn, prediction), torch.arange(20) % 10)
    figure.savefig(io.BytesIO())
    extent = figure.legends[0].get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.x1


def test_curves_have_the_areas_of_the_tables():
    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(400, generator=generator).round(decimals=1)  # with ties
    outside = torch.randn(300, generator=generator).round(decimals=1) + 1.5
    curves = {"daedl": Uncertainties(inside, outside, "epistemic")}
    (line,) = plots.precision_recall_curves(curves).axes[0].lines
    recall, precision = line.get_data()
    assert line.get_drawstyle() == "steps-post"
    area = -np.sum(np.diff(recall) * precision[:-1])
    assert area == pytest.approx(metrics.aupr(inside, outside))
    axes = plots.roc_curves(curves).axes[0]
    assert axes.get_xscale() == "log"
    assert auc(*axes.lines[0].get_data()) == pytest.approx(metrics.auroc(inside, outside), abs=0.01)


def test_ties_are_a_chord_and_the_legend_names_the_aleatoric_score():
    known = torch.tensor([0.0, 0.0, 1.0, 1.0])
    curves = {
        "daedl": Uncertainties(known, torch.ones(100), "epistemic"),
        "softmax": Uncertainties(known, torch.full((100,), 0.5), "aleatoric"),
    }
    figure = plots.roc_curves(curves)
    first, second = figure.axes[0].lines
    assert np.interp(0.5, *first.get_data()) == pytest.approx(0.75, abs=0.01)
    labels = [each.get_text() for each in figure.legends[0].get_texts()]
    assert labels == ["DAEDL", "Softmax (aleatoric)"]
    assert (first.get_linestyle(), first.get_marker()) != (
        second.get_linestyle(),
        second.get_marker(),
    )


def test_the_axis_of_precision_is_cut_and_says_so():
    inside, outside = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0))
    curves = {"daedl": Uncertainties(inside, outside + 5, "epistemic")}
    (axes,) = plots.precision_recall_curves(curves).axes
    bottom = axes.get_ylim()[0]
    assert 0.9 < bottom < 1
    assert axes.get_ylabel() == f"precision (axis starts at {bottom:.2f})"


def shift_rows(family, experiment):
    """AUPR of two methods with two seeds for every corruption, and means; softmax is aleatoric only."""
    return [
        row(method, name, "shift", score, "aupr", 0.7 + 0.01 * seed, seed, **circumstances)
        for circumstances in [{"experiment": experiment, "protocol": "stripes-tiny"}]
        for seed in range(2)
        for method, score in (
            ("softmax", "aleatoric"),
            ("daedl", "aleatoric"),
            ("daedl", "epistemic"),
        )
        for group, members in corrupted_sets(family).items()
        for name in (*members, group)
    ]


def test_corruptions_are_drawn_as_in_the_paper():
    """One method's uncertainty grows with every severity, the other's falls."""
    rows = [*shift_rows("mnist-c", "stripes-shift"), *shift_rows("cifar10-c", "stripes-severity")]
    circumstances = {"experiment": "stripes-severity", "protocol": "stripes-tiny"}
    rows += [
        row(method, name, "uncertainty", "aleatoric", "mean", sign * int(name[-1]), **circumstances)
        for method, sign in (("daedl", 0.1), ("softmax", -0.1))
        for members in corrupted_sets("cifar10-c").values()
        for name in members
    ]
    single, several = pictures.of_corruptions(Results(CATALOGUE, tuple(rows)))
    assert single.title == "MNIST-C, tiny protocol"
    assert [each.name.removeprefix("stripes-tiny-") for each in single.pictures] == [
        "mnist-c-aleatoric-aupr",
        "mnist-c-epistemic-aupr",
    ]
    assert [each.name.removeprefix("stripes-tiny-cifar10-c-") for each in several.pictures] == [
        "aleatoric-aupr",
        "epistemic-aupr",
        "growth-aleatoric",
        "grid-aleatoric-aupr",
        "grid-epistemic-aupr",
    ]
    mean, _, growth, _, grid = several.pictures
    assert "DAEDL 100" in growth.caption
    assert "Softmax -100" in growth.caption
    assert "mean over 19 corruptions" in mean.caption
    assert "each of 19 corruptions" in grid.caption
    assert mean.narrow is None
    assert grid.narrow not in (None, grid.data)


def test_corruptions_without_rows_name_their_command():
    for only in pictures.of_corruptions(Results(CATALOGUE, ())):
        assert only.pictures == ()
        assert only.notes[1].strip().startswith("python -m daedl_bench run stripes-s")


def test_severity_lines_have_bands_and_one_panel_per_corruption():
    found = DataFrame(
        {"method": m, "corruption": f"noise_{c}", "severity": s, "mean": 0.5 + 0.1 * s, "std": 0.02}
        for m in ("daedl", "softmax")
        for c in range(7)
        for s in range(1, 6)
    )
    grid = plots.severity_lines(found, "AUPR", 5, (2.0, 2.0))
    assert [each.get_title() for each in grid.axes] == [f"noise {n}" for n in range(7)]
    axes = grid.axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([60, 70, 80, 90, 100])
    assert len(axes.collections) == 2
    low, high = axes.get_ylim()
    assert low < 58
    assert high > 102


def test_corruptions_are_sorted_by_their_mean_and_markers_do_not_overlap():
    columns = ["method", "corruption", "mean", "std"]
    lines = [
        ("daedl", "fog", 0.9, 0.01),
        ("daedl", "glass_blur", 0.7, 0.01),
        ("edl", "fog", 0.9, None),
    ]
    (axes,) = plots.corruption_dots(DataFrame(lines, columns=columns), "AUPR").axes
    assert [each.get_text() for each in axes.get_yticklabels()] == ["glass blur", "fog"]
    first, second = (line.get_ydata() for line in axes.lines if len(line.get_ydata()))
    assert first[0] != second[0]


def test_gaps_to_the_largest_aupr_are_drawn_with_the_first_method_at_the_top():
    detection = DataFrame({"KMNIST": [0.999, 0.99]}, index=["daedl", "softmax"])
    (axes,) = plots.aupr_gaps(detection).axes
    assert axes.get_yticklabels()[0].get_text() == "DAEDL"
    assert list(axes.lines[0].get_xdata()) == pytest.approx([0.1, 1.0])
    assert axes.yaxis_inverted()
