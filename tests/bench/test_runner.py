"""Running experiments: trained once, measured once, resumed, and failures reported."""

import io
from dataclasses import replace

import pytest
from made import TINY
from made import stripes as load
from rich.console import Console

from daedl.demo.training import Progress
from daedl.networks import ConvNet
from daedl.training import CacheWarning
from daedl_bench import results, runner
from daedl_bench.cache import Cache
from daedl_bench.spec import catalogue
from daedl_bench.workspace import Workspace

SHIFT = TINY.replace('ood = ["noise"]', 'shift = "mnist-c"')
MORE = TINY.replace('ood = ["noise"]', 'ood = ["noise", "others"]')
NOWHERE = TINY.replace('["noise"]', '["nowhere", "noise"]')


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.jsonl"


@pytest.fixture
def passes(monkeypatch):
    """Images per forward pass, without the single blank image by which a network measures itself."""
    counted = []
    forward = ConvNet.forward

    def counting(self, images):
        counted.append(len(images) if len(images) > 1 else 0)
        return forward(self, images)

    monkeypatch.setattr(ConvNet, "forward", counting)
    return counted


def run(cache, path, text=TINY, load=load, methods=("full",), **options):
    space = Workspace(load, cache, options.pop("progress", Progress(show=False)))
    return runner.run(catalogue(text), "tiny", space, path, methods=methods, **options)


def without(*missing):
    """Datasets of which the split `missing` can't be loaded."""
    return lambda name, split: load("nowhere" if (name, split) == missing else name, split)


def figures(path, *fields):
    return [tuple(getattr(row, field) for field in fields) for row in results.load(path)]


def test_one_training_serves_the_method_with_and_without_density(cache, path, passes, tmp_path):
    assert run(cache, path, methods=None) == []
    assert set(figures(path, "method")) == {("plus",), ("full",), ("tied",)}
    assert len(list(cache.folder.iterdir())) == 1
    accuracy = {row.value for row in results.load(path) if row.metric == "accuracy"}
    assert len(accuracy) == 1
    once = sum(passes)
    run(Cache(tmp_path / "alone"), tmp_path / "alone.jsonl")
    assert sum(passes) - once == once  # one density costs as many passes as all of them


def test_a_second_identical_run_computes_nothing(cache, path, passes):
    run(cache, path, methods=None)
    before, held = sum(passes), path.read_bytes()
    assert run(cache, path, methods=None) == []
    assert sum(passes) == before
    assert path.read_bytes() == held


def test_one_more_ood_dataset_costs_that_dataset_alone(cache, path, passes):
    run(cache, path)
    before, held = sum(passes), results.load(path)
    assert run(cache, path, MORE) == []
    assert sum(passes) - before == 300
    assert {row.data for row in results.load(path)[len(held) :]} == {"others"}


def test_corruptions_are_measured_each_and_on_average(cache, path):
    assert run(cache, path, SHIFT) == []
    rows = [row for row in results.load(path) if row.task == "shift"]
    each = [row.value for row in rows if (row.score, row.metric) == ("epistemic", "auroc")]
    assert len(each) == 15 + 1
    assert each[-1] == pytest.approx(sum(each[:-1]) / 15)
    assert (rows[0].data, rows[-1].data) == ("mnist-c/brightness", "mnist-c")
    held = path.read_bytes()
    assert run(cache, path, SHIFT) == []
    assert path.read_bytes() == held


def test_a_share_of_the_corruptions_is_compared_with_the_same_test_images(cache, path):
    """Uncorrupted here, so that every AUROC is 0.5, up to the rounding of batches of other sizes."""

    def first(name, split):
        if name.startswith("mnist-c"):
            return load("stripes", split).subset(range(50))
        return load(name, split)

    assert run(cache, path, SHIFT, first) == []
    rows = [row for row in results.load(path) if row.task == "shift" and row.metric == "auroc"]
    assert [row.value for row in rows] == pytest.approx([0.5] * len(rows), abs=1e-3)


def test_rows_state_that_corruptions_were_generated(cache, path):
    def generating(name, split):
        return replace(load(name, split), made=name == "mnist-c/fog")

    assert run(cache, path, SHIFT, generating) == []
    corrupted = {row.data.startswith("mnist-c"): set() for row in results.load(path)}
    for row in results.load(path):
        corrupted[row.data.startswith("mnist-c")].add(row.made)
    assert corrupted == {True: {True}, False: {False}}


def test_rows_of_a_corruption_are_written_before_the_next_is_predicted(cache, path):
    """And are not measured again afterwards."""
    loaded = []

    def failing(name, split):
        if name == "mnist-c/dotted_line" and name in loaded:  # it is loaded once before training
            raise OSError("gone")
        loaded.append(name)
        return load(name, split)

    (failure,) = run(cache, path, SHIFT, failing)
    assert str(failure) == "full, seed 0, mnist-c: OSError: gone"
    held = [row.data for row in results.load(path) if row.task == "shift"]
    assert list(dict.fromkeys(held)) == ["mnist-c/brightness", "mnist-c/canny_edges"]
    assert run(cache, path, SHIFT) == []
    rows = [(row.data, row.score, row.metric) for row in results.load(path) if row.task == "shift"]
    assert len(rows) == len(set(rows)) == len(held) * 16 / 2


def test_deleted_rows_are_measured_again_with_their_mean(cache, path):
    text = TINY.replace('ood = ["noise"]', 'shift = "cifar10-c"')
    assert run(cache, path, text) == []
    whole = results.load(path)
    assert len({row.data for row in whole}) == 1 + 19 * 5 + 5
    lost = {"cifar10-c/fog/3", "cifar10-c/2"}
    kept = [row for row in whole if row.data not in lost]
    results.save(path, kept)
    assert run(cache, path, text) == []
    again = results.load(path)
    assert {row.data for row in again[len(kept) :]} == lost | {"cifar10-c/3"}
    assert {(row.data, row.score, row.metric, row.value) for row in again} >= {
        (row.data, row.score, row.metric, row.value) for row in whole if row.task == "shift"
    }


def test_networks_are_trained_on_request_although_their_rows_exist(cache, path, tmp_path):
    run(cache, path)
    held, empty = path.read_bytes(), Cache(tmp_path / "empty")
    assert run(empty, path) == []
    assert list(empty.folder.iterdir()) == []
    assert run(empty, path, networks=True) == []
    assert len(list(empty.folder.glob("*/model.daedl"))) == 1
    assert path.read_bytes() == held


def test_a_dataset_that_cannot_be_loaded_is_reported_first_and_left_out(cache, path):
    console = Console(record=True, width=200, file=io.StringIO())
    (failure,) = run(cache, path, NOWHERE, progress=Progress(console))
    assert str(failure) == "nowhere: FileNotFoundError: no file of nowhere"
    assert {row.data for row in results.load(path)} == {"stripes", "noise"}
    printed = console.export_text()
    assert printed.index(f"failed: {failure}") < printed.index("tiny · tiny · full, seed 0")


def test_where_only_such_datasets_are_missing_nothing_is_trained(cache, path, passes):
    run(cache, path, NOWHERE)
    done = sum(passes)
    for network in cache.folder.glob("*/model.daedl"):
        network.unlink()
    assert [each.where for each in run(cache, path, NOWHERE)] == ["nowhere"]
    assert sum(passes) == done


def test_missing_training_images_are_reported_once_before_training(cache, path, passes):
    """Trials with a cached network run without them."""
    lacking = without("stripes", "train")
    (failure,) = run(cache, path, load=lacking, methods=None, seeds=[0, 1, 2])
    assert str(failure) == "training images of stripes: FileNotFoundError: no file of nowhere"
    assert not passes
    run(cache, path, methods=["plus"], seeds=[1])
    assert len(run(cache, path, load=lacking, methods=["plus"], seeds=[0, 1])) == 1
    assert run(cache, path, MORE, lacking, methods=["plus"], seeds=[1]) == []


def test_without_test_images_nothing_is_trained(cache, path, passes):
    (failure,) = run(cache, path, load=without("stripes", "test"))
    assert failure.where == "stripes"
    assert not passes


def test_test_images_are_not_needed_again(cache, path):
    """Their outputs are cached and their rows exist."""
    run(cache, path)
    assert run(cache, path, MORE, without("stripes", "test")) == []
    assert "others" in {row.data for row in results.load(path)}


def test_an_ood_dataset_may_have_more_classes_than_the_network(cache, path):
    """As CIFAR-100 for CIFAR-10."""

    def richer(name, split):
        images = load(name, split)
        return replace(images, labels=images.labels + 97) if name == "noise" else images

    assert run(cache, path, load=richer) == []
    assert {row.data for row in results.load(path)} == {"stripes", "noise"}


def test_training_costs_are_cached_with_the_network(cache, path):
    run(cache, path, methods=["plus"])
    run(cache, path, methods=["full"])  # trained already
    costs = {
        (row.method, row.score, row.metric): row.value
        for row in results.load(path)
        if row.task == "cost"
    }
    assert costs["plus", "training", "epochs"] == 2
    assert costs["full", "training", "seconds"] == costs["plus", "training", "seconds"] > 0
    assert costs["full", "fit", "seconds"] > 0 == costs["plus", "fit", "seconds"]


def test_a_dataset_of_another_size_than_the_split_is_reported(cache, path):
    (failure,) = run(cache, path, TINY.replace("[240, 60]", "[200, 60]"))
    assert "expected 260" in str(failure)


def test_a_seed_given_twice_is_measured_once(cache, path):
    run(cache, path, methods=["plus"], seeds=[1, 1])
    rows = figures(path, "data", "task", "score", "metric")
    assert len(rows) == len(set(rows))


def test_rows_that_another_process_wrote_meanwhile_are_not_measured_again(cache, path):
    class Waiting(Cache):
        """A cache whose lock is taken by another run, which trains and measures."""

        def lock(self, key):
            if not self.has(key):
                run(cache, path)
            return super().lock(key)

    assert run(Waiting(cache.folder), path) == []
    rows = figures(path, "data", "task", "score", "metric")
    assert len(rows) == len(set(rows))


def test_an_interrupted_run_resumes(cache, path, tmp_path, monkeypatch):
    """Stopped in the second epoch; the next run trains that epoch alone."""
    from daedl.training.passes import Passes

    train, begun, stops = Passes.train, [], [1]

    def stopping(self, batches, epoch):
        begun.append(epoch)
        if epoch in stops:
            raise KeyboardInterrupt
        return train(self, batches, epoch)

    monkeypatch.setattr(Passes, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        run(cache, path)
    stops.clear()
    assert run(cache, path) == []
    assert begun == [0, 1, 1]
    run(Cache(tmp_path / "whole"), tmp_path / "whole.jsonl")
    values = [
        [row.value for row in results.load(each) if row.task != "cost"]
        for each in (path, tmp_path / "whole.jsonl")
    ]
    assert values[0] == values[1]


def test_a_failed_trial_does_not_stop_the_others(cache, path, monkeypatch):
    from daedl.methods import DAEDL

    fit = DAEDL.fit

    def failing(self, outputs, targets):
        if self.covariance == "tied":
            raise ValueError("no luck")
        return fit(self, outputs, targets)

    monkeypatch.setattr(DAEDL, "fit", failing)
    (failure,) = run(cache, path, methods=["tied", "full"], seeds=[3])
    assert str(failure) == "tied, seed 3: ValueError: no luck"
    assert {row.method for row in results.load(path)} == {"full"}


def test_a_damaged_network_in_the_cache_is_reported_and_its_outputs_are_replaced(cache, path):
    run(cache, path, methods=["plus"])
    (model,) = cache.folder.glob("*/model.daedl")
    model.write_bytes(model.read_bytes()[:100])
    (failure,) = run(cache, path)
    assert f"delete the folder {model.parent}" in str(failure)
    model.unlink()
    outputs = model.parent / "noise.safetensors"
    before = outputs.stat().st_mtime_ns
    assert run(cache, path) == []
    assert outputs.stat().st_mtime_ns > before


def test_damaged_outputs_are_reported_and_computed_again(cache, path):
    run(cache, path, methods=["plus"])
    (outputs,) = cache.folder.glob("*/noise.safetensors")
    outputs.write_bytes(outputs.read_bytes()[:100])
    with pytest.warns(CacheWarning):
        assert run(cache, path) == []
    assert {row.data for row in results.load(path) if row.method == "full"} == {"stripes", "noise"}


def test_an_ensemble_uses_networks_that_were_trained_alone(cache, path, passes):
    """Seed 1 of two members uses seeds 2 and 3."""
    run(cache, path, methods=["softmax"], seeds=[2, 3])
    once = sum(passes)
    assert run(cache, path, methods=["pair"], seeds=[1]) == []
    assert sum(passes) == once
    rows = results.load(path)
    scores = {row.score for row in rows if row.method == "pair" and row.task == "ood"}
    assert scores == {"aleatoric", "epistemic"}
    seconds = {
        (row.method, row.seed): row.value
        for row in rows
        if (row.task, row.score, row.metric) == ("cost", "training", "seconds")
    }
    members = seconds["softmax", 2] + seconds["softmax", 3]
    assert seconds["pair", 1] == pytest.approx(members)
