"""Pictures of the comparison: from small networks in a cache, and from made rows."""

import io
import shutil

import numpy as np
import pytest
import torch
from made import row
from made import stripes as load
from sklearn.metrics import auc

from daedl import figures, metrics, storage
from daedl.prediction import Prediction
from daedl_bench import comparison, store
from daedl_bench.comparison import drawing, pictures
from daedl_bench.comparison.drawing import Told
from daedl_bench.comparison.measured import Measurements, Summary
from daedl_bench.datasets import corrupted_sets
from daedl_bench.runner import run
from daedl_bench.spec import catalogue, training_key
from daedl_bench.store import Store

SPEC = """
[protocol.stripes-tiny]
title = "two epochs of a small network"
data = "stripes"
split = [240, 60]
network = { name = "ConvNet", in_channels = 1, num_classes = 3, image_size = 8, channels = 4 }
training = { max_epochs = 2, batch_size = 32, learning_rate = 1e-3 }

[method]
softmax = { name = "softmax" }
daedl = { name = "daedl" }
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
NAMES = {
    "stripes-tiny-roc-dots",
    "stripes-tiny-pr-dots",
    "stripes-tiny-roc-blots",
    "stripes-tiny-pr-blots",
    "stripes-tiny-density-daedl",
    "stripes-tiny-density-daedl-loo",
    "stripes-tiny-reliability",
}


def nowhere(name, split):
    raise FileNotFoundError(f"no {name}")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with results and a cache of three methods, two of which share their network."""
    folder = tmp_path_factory.mktemp("run")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    (folder / "results").mkdir()
    failures = run(
        CATALOGUE,
        "stripes-ood",
        load=load,
        store=Store(folder / "cache"),
        results=folder / "results" / "stripes-ood.jsonl",
        seeds=[0, 1],
    )
    torch.set_num_threads(threads)
    assert failures == []
    return folder


def write(folder, out, cache="cache", load=nowhere):
    arguments = {"catalogue": CATALOGUE, "cache": folder / cache, "load": load}
    return comparison.write(folder / "results", out, **arguments)


def test_pictures_come_from_the_cache_alone(made, tmp_path):
    path = write(made, tmp_path / "out")
    assert {each.stem for each in path.parent.glob("*.png")} == NAMES
    html = path.read_text()
    assert html.count('<img src="data:image/png;base64,') == html.count("<img") == len(NAMES)
    markdown = path.with_suffix(".md").read_text()
    assert all(f"({name}.png)" in markdown for name in NAMES)
    for form in (html, markdown):
        assert "stripes, tiny protocol, seed 0" in form
        assert str(made) not in form


def test_nothing_is_trained_and_no_cache_is_made(made, tmp_path):
    path = write(made, tmp_path / "out", cache="elsewhere")
    assert not (made / "elsewhere").exists()
    assert list(path.parent.glob("*.png")) == []
    command = (
        "daedl bench run stripes-ood --protocol tiny --methods softmax,daedl,daedl-loo --seeds 0 "
        "--networks"
    )
    for form in (path.read_text(), path.with_suffix(".md").read_text()):
        assert "No pictures" in form
        assert command in form


def test_a_cache_is_read_without_being_written_to(made, tmp_path, monkeypatch):
    """As one on a medium that can only be read."""

    def refuse(*_):
        raise OSError("cannot write")

    monkeypatch.setattr(storage, "write_atomically", refuse)
    monkeypatch.setattr(store, "write_atomically", refuse)
    found = comparison.measured.load(made / "results", CATALOGUE)
    (gallery,) = pictures.of_networks(found, made / "cache", nowhere)
    assert {each.name for each in gallery.pictures} == NAMES


def test_a_cache_that_lacks_outputs_is_not_written_to_either(made, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(made / "cache", cache)
    for path in [*cache.glob("*/dots.safetensors"), *cache.glob("*/.lock")]:
        path.unlink()
    before = sorted(cache.rglob("*"))
    found = comparison.measured.load(made / "results", CATALOGUE)
    (gallery,) = pictures.of_networks(found, cache, load)
    assert {each.name for each in gallery.pictures} == NAMES
    assert sorted(cache.rglob("*")) == before


def test_methods_without_a_network_are_named(made, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(made / "cache", cache)
    for seed in (0, 1):
        protocol, softmax = CATALOGUE.protocols["stripes-tiny"], CATALOGUE.method("softmax")
        shutil.rmtree(cache / training_key(protocol, softmax, seed))
    found = comparison.measured.load(made / "results", CATALOGUE)
    (gallery,) = pictures.of_networks(found, cache, nowhere)
    assert gallery.pictures
    assert gallery.notes == ("Not in the cache, and so not drawn: Softmax. What trains them:",)
    assert "--methods softmax --seeds 0 --networks" in gallery.command


def test_a_protocol_without_rows_says_so(tmp_path):
    (gallery,) = pictures.of_networks(Measurements(CATALOGUE, ()), tmp_path, nowhere)
    assert gallery.notes == (pictures.NOT_RUN,)
    assert "daedl bench run stripes-ood --protocol tiny" in gallery.command


def test_the_legend_of_many_methods_lies_inside_the_reliability_diagram():
    drawn = catalogue().experiment("mnist-ood").drawn
    probs = torch.full((20, 10), 0.1)
    targets = torch.arange(20) % 10
    predictions = {label: Prediction.from_probs(probs) for label in drawn}
    figure = figures.reliability_diagram(predictions, targets)
    figure.savefig(io.BytesIO())
    extent = figure.legends[0].get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.x1


def test_the_seed_with_the_most_networks_is_shown(made, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(made / "cache", cache)
    found = comparison.measured.load(made / "results", CATALOGUE)
    protocol, softmax = CATALOGUE.protocols["stripes-tiny"], CATALOGUE.method("softmax")
    shutil.rmtree(cache / training_key(protocol, softmax, 0))
    (gallery,) = pictures.of_networks(found, cache, nowhere)
    assert gallery.title == "stripes, tiny protocol, seed 1"
    assert {each.name for each in gallery.pictures} == NAMES


def test_outputs_that_cannot_be_had_are_told_and_the_rest_is_drawn(made, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(made / "cache", cache)
    for path in cache.glob("*/dots.safetensors"):
        path.unlink()
    found = comparison.measured.load(made / "results", CATALOGUE)
    (gallery,) = pictures.of_networks(found, cache, nowhere)
    assert {each.name for each in gallery.pictures} == {
        name for name in NAMES if not name.endswith("-dots")
    }
    assert len(gallery.notes) == 3
    assert "Softmax on dots is left out: its outputs are not in the cache" in gallery.notes[0]
    (gallery,) = pictures.of_networks(found, cache, load)  # with the images they are made again
    assert {each.name for each in gallery.pictures} == NAMES


def told(inside, outside, score="epistemic"):
    return Told(torch.tensor(inside), torch.tensor(outside), score)


def test_curves_have_the_areas_of_the_tables():
    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(400, generator=generator).round(decimals=1)  # with ties
    outside = torch.randn(300, generator=generator).round(decimals=1) + 1.5
    curves = {"daedl": Told(inside, outside, "epistemic")}
    (line,) = drawing.precision_recall_curves(curves).axes[0].lines
    recall, precision = line.get_data()
    assert line.get_drawstyle() == "steps-post"
    area = -np.sum(np.diff(recall) * precision[:-1])
    assert area == pytest.approx(metrics.aupr(inside, outside))
    axes = drawing.roc_curves(curves).axes[0]
    assert axes.get_xscale() == "log"
    assert auc(*axes.lines[0].get_data()) == pytest.approx(metrics.auroc(inside, outside), abs=0.01)


def test_ties_are_a_chord_and_names_tell_the_score():
    curves = {
        "daedl": told([0.0, 0.0, 1.0, 1.0], [1.0] * 100),
        "softmax": told([0.0, 0.2, 0.4, 0.6], [0.5] * 100, "aleatoric"),
    }
    figure = drawing.roc_curves(curves)
    rates, accepted = figure.axes[0].lines[0].get_data()
    assert np.interp(0.5, rates, accepted) == pytest.approx(0.75, abs=0.01)
    labels = [each.get_text() for each in figure.legends[0].get_texts()]
    assert labels == ["DAEDL", "Softmax (aleatoric)"]
    lines = {line.get_linestyle() + line.get_marker() for line in figure.axes[0].lines}
    assert len(lines) == 2


def test_the_axis_of_precision_is_cut_and_says_so():
    generator = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(2, 2000, generator=generator)
    axes = drawing.precision_recall_curves({"daedl": Told(inside, outside + 5, "epistemic")}).axes[
        0
    ]
    bottom = axes.get_ylim()[0]
    assert 0.9 < bottom < 1
    assert axes.get_ylabel() == f"precision (axis starts at {bottom:.2f})"


def shift_rows(family, experiment, scores):
    """Two seeds of two methods: singles, and their mean by severity; softmax is aleatoric alone."""
    found = []
    for seed in range(2):
        for method, offered in (("softmax", ["aleatoric"]), ("daedl", scores)):
            for group, names in corrupted_sets(family).items():
                for name in (*names, group):
                    found += [
                        row(
                            method,
                            name,
                            "shift",
                            score,
                            "aupr",
                            0.7 + 0.01 * seed + 0.02 * (method == "daedl") + 0.001 * len(name),
                            seed,
                            experiment=experiment,
                            protocol="stripes-tiny",
                        )
                        for score in offered
                    ]
    return found


def test_corruptions_are_drawn_in_the_papers_form():
    found = [
        *shift_rows("mnist-c", "stripes-shift", ["aleatoric", "epistemic"]),
        *shift_rows("cifar10-c", "stripes-severity", ["aleatoric"]),
    ]
    single, several = pictures.of_corruptions(Measurements(CATALOGUE, tuple(found)))
    assert single.title == "MNIST-C, tiny protocol"
    assert [each.name for each in single.pictures] == [
        "stripes-tiny-mnist-c-aleatoric-aupr",
        "stripes-tiny-mnist-c-epistemic-aupr",
    ]
    average, grid = several.pictures
    assert average.name == "stripes-tiny-cifar10-c-aleatoric-aupr"
    assert "mean over 19 corruptions" in average.caption
    assert grid.name == "stripes-tiny-cifar10-c-grid-aleatoric-aupr"
    assert "each of 19 corruptions" in grid.caption
    assert (average.narrow, grid.narrow == grid.data) == (None, False)


def test_corruptions_without_rows_say_so():
    for gallery in pictures.of_corruptions(Measurements(CATALOGUE, ())):
        assert gallery.pictures == ()
        assert gallery.notes == ("Not run. What runs it:",)
        assert gallery.command.startswith("daedl bench run stripes-s")


def test_lines_have_bands_and_the_grid_a_panel_for_each_corruption():
    values = {step: Summary(0.5 + 0.1 * step, 0.02, 3) for step in range(1, 6)}
    lines = {"daedl": values, "softmax": values}
    axes = drawing.severity_lines(lines, "AUPR").axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([60, 70, 80, 90, 100])
    assert len(axes.collections) == 2
    panels = dict.fromkeys((f"corruption_{n}" for n in range(19)), lines)
    grid = drawing.corruption_grid(panels, "AUPR", 5)
    assert [each.get_title() for each in grid.axes] == [f"corruption {n}" for n in range(19)]
    low, high = grid.axes[0].get_ylim()
    assert low < 58
    assert high > 102


def test_dots_are_sorted_and_lie_beside_each_other():
    values = {
        "daedl": {"fog": Summary(0.9, 0.01, 3), "glass_blur": Summary(0.7, 0.01, 3)},
        "softmax": {"fog": Summary(0.8, None, 1)},
    }
    axes = drawing.corruption_dots(values, "AUPR").axes[0]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["glass blur", "fog"]
    heights = [line.get_ydata() for line in axes.lines if len(line.get_ydata())]
    assert heights[0][-1] != heights[1][-1]
