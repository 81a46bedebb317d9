"""Running experiments: one training for all that comes after, nothing twice, failures told."""

import io
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from made import stripes as load
from rich.console import Console

from daedl.classifier import Classifier
from daedl.demo.training import Progress
from daedl.methods.temperature import best_temperature
from daedl.networks import ConvNet
from daedl.training import History
from daedl_bench import rows
from daedl_bench.cell import Cell
from daedl_bench.runner import run
from daedl_bench.spec import catalogue, cell_key, training_key
from daedl_bench.store import Store

SPEC = """
[protocol.tiny]
title = "two epochs of a small network"
data = "stripes"
split = [240, 60]
network = { name = "ConvNet", in_channels = 1, num_classes = 3, image_size = 8, channels = 4 }
training = { max_epochs = 2, batch_size = 32, learning_rate = 1e-3, lr_decay = 0.95, patience = 5 }

[method.plus]
name = "edl+"
spectral = "default"

[method.full]
name = "daedl"

[method.tied]
name = "daedl"
covariance = "tied"

[method.softmax]
name = "softmax"

[method.temperature]
name = "temperature"

[method.fisher]
name = "i-edl"

[method.flow]
name = "postnet"

[method.pair]
name = "ensemble"
size = 2

[method.full-pair]
name = "ensemble"
member = "daedl"
size = 2

[experiment.tiny]
title = "Stripes against noise"
protocols = { short = "tiny" }
methods = ["plus", "full", "tied"]
test = "stripes"
ood = ["noise"]
"""


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


@pytest.fixture
def passes(monkeypatch):
    """How many images went through a network; single blank ones, by which it measures itself, aside."""
    counted = []
    forward = ConvNet.forward

    def counting(self, images):
        counted.append(len(images) if len(images) > 1 else 0)
        return forward(self, images)

    monkeypatch.setattr(ConvNet, "forward", counting)
    return counted


def go(store, tmp_path, **arguments):
    return run(
        catalogue(SPEC),
        "tiny",
        load=load,
        store=store,
        results=tmp_path / "rows.jsonl",
        **arguments,
    )


def test_one_training_serves_the_density_on_and_off(store, tmp_path, passes):
    assert go(store, tmp_path) == []
    found = rows.load(tmp_path / "rows.jsonl")
    assert {row.method for row in found} == {"plus", "full", "tied"}
    assert len(list(store.folder.iterdir())) == 1
    once = sum(passes)
    alone = Store(tmp_path / "alone")
    go(alone, alone.folder, methods=["full"])
    assert sum(passes) - once == once  # a single density costs as many passes as all of them


def test_accuracy_is_the_same_with_and_without_density(store, tmp_path):
    go(store, tmp_path)
    accuracy = {
        row.method: row.value
        for row in rows.load(tmp_path / "rows.jsonl")
        if row.metric == "accuracy"
    }
    assert accuracy["plus"] == accuracy["full"] == accuracy["tied"]


def test_a_second_identical_run_costs_nothing(store, tmp_path, passes):
    go(store, tmp_path)
    before, held = sum(passes), (tmp_path / "rows.jsonl").read_bytes()
    assert go(store, tmp_path) == []
    assert sum(passes) == before
    assert (tmp_path / "rows.jsonl").read_bytes() == held


def test_one_more_unknown_set_costs_that_set_alone(store, tmp_path, passes):
    go(store, tmp_path, methods=["full"])
    before, held = sum(passes), rows.load(tmp_path / "rows.jsonl")
    more = catalogue(SPEC.replace('ood = ["noise"]', 'ood = ["noise", "others"]'))
    arguments = {"load": load, "store": store, "results": tmp_path / "rows.jsonl"}
    assert run(more, "tiny", methods=["full"], **arguments) == []
    assert sum(passes) - before == 300
    added = rows.load(tmp_path / "rows.jsonl")[len(held) :]
    assert {row.data for row in added} == {"others"}


def test_corruptions_are_measured_each_and_on_average(store, tmp_path):
    spec = catalogue(SPEC.replace('ood = ["noise"]', 'shift = "mnist-c"'))
    arguments = {"load": load, "store": store, "results": tmp_path / "rows.jsonl"}
    assert run(spec, "tiny", methods=["full"], **arguments) == []
    found = [row for row in rows.load(tmp_path / "rows.jsonl") if row.task == "shift"]
    each = [row.value for row in found if (row.score, row.metric) == ("epistemic", "auroc")]
    assert len(each) == 15 + 1
    assert each[-1] == pytest.approx(sum(each[:-1]) / 15)
    assert found[-1].data == "mnist-c"
    assert found[0].data == "mnist-c/brightness"
    held = (tmp_path / "rows.jsonl").read_bytes()
    assert run(spec, "tiny", methods=["full"], **arguments) == []
    assert (tmp_path / "rows.jsonl").read_bytes() == held


def test_rows_say_that_corruptions_were_made_here(store, tmp_path):
    spec = catalogue(SPEC.replace('ood = ["noise"]', 'shift = "mnist-c"'))

    def making(name, split):
        return replace(load(name, split), made=name == "mnist-c/fog")

    results = tmp_path / "rows.jsonl"
    assert run(spec, "tiny", load=making, store=store, results=results, methods=["full"]) == []
    assert {row.made for row in rows.load(results) if row.task == "shift"} == {True}
    assert {row.made for row in rows.load(results) if row.task != "shift"} == {False}


def test_rows_of_a_corruption_are_kept_before_the_next_is_predicted(store, tmp_path):
    """And are not measured again afterwards."""
    spec = catalogue(SPEC.replace('ood = ["noise"]', 'shift = "mnist-c"'))
    results, asked = tmp_path / "rows.jsonl", []

    def stopping(name, split):
        if name == "mnist-c/dotted_line" and asked.count(name) == 1:  # it was there before training
            raise OSError("gone")
        asked.append(name)
        return load(name, split)

    arguments = {"store": store, "results": results, "methods": ["full"]}
    (failure,) = run(spec, "tiny", load=stopping, **arguments)
    assert str(failure) == "full, seed 0, mnist-c: OSError: gone"
    held = [row.data for row in rows.load(results) if row.task == "shift"]
    assert list(dict.fromkeys(held)) == ["mnist-c/brightness", "mnist-c/canny_edges"]
    assert run(spec, "tiny", load=load, **arguments) == []
    found = [(row.data, row.score, row.metric) for row in rows.load(results) if row.task == "shift"]
    assert len(found) == len(set(found)) == len(held) * 16 / 2


@pytest.mark.parametrize(
    ("lost", "mean"), [("cifar10-c/fog/3", "cifar10-c/3"), ("cifar10-c/2", "cifar10-c/2")]
)
def test_rows_that_were_deleted_are_measured_again_with_their_mean(store, tmp_path, lost, mean):
    spec = catalogue(SPEC.replace('ood = ["noise"]', 'shift = "cifar10-c"'))
    results = tmp_path / "rows.jsonl"
    arguments = {"load": load, "store": store, "results": results, "methods": ["full"]}
    assert run(spec, "tiny", **arguments) == []
    whole = rows.load(results)
    assert len({row.data for row in whole}) == 1 + 19 * 5 + 5
    kept = [row for row in whole if row.data != lost]
    rows.save(results, kept)
    assert run(spec, "tiny", **arguments) == []
    again = rows.load(results)
    assert {row.data for row in again[len(kept) :]} == {lost, mean}
    assert {(row.data, row.score, row.metric, row.value) for row in again} >= {
        (row.data, row.score, row.metric, row.value) for row in whole if row.task == "shift"
    }


def test_networks_are_trained_although_their_rows_exist_if_asked_for(store, tmp_path):
    go(store, tmp_path, methods=["full"])
    held = (tmp_path / "rows.jsonl").read_bytes()
    empty = Store(tmp_path / "empty")
    assert go(empty, tmp_path, methods=["full"]) == []
    assert list(empty.folder.iterdir()) == []
    assert go(empty, tmp_path, methods=["full"], networks=True) == []
    assert [each.name for each in empty.folder.glob("*/model.daedl")] == ["model.daedl"]
    assert (tmp_path / "rows.jsonl").read_bytes() == held


def test_data_that_cannot_be_had_are_told_and_the_rest_is_measured(store, tmp_path):
    spec = catalogue(SPEC.replace('["noise"]', '["nowhere", "noise"]'))
    arguments = {"load": load, "store": store, "results": tmp_path / "rows.jsonl"}
    (failure,) = run(spec, "tiny", methods=["full"], **arguments)
    assert str(failure) == "nowhere: FileNotFoundError: no file of nowhere"
    assert {row.data for row in rows.load(tmp_path / "rows.jsonl")} == {"stripes", "noise"}


def test_why_something_failed_is_told_at_once(store, tmp_path):
    spec = catalogue(SPEC.replace('["noise"]', '["nowhere", "noise"]'))
    console = Console(record=True, width=200, file=io.StringIO())
    arguments = {"load": load, "store": store, "results": tmp_path / "rows.jsonl"}
    run(spec, "tiny", methods=["full"], progress=Progress(console), **arguments)
    told = console.export_text()
    reason = told.index("failed: nowhere: FileNotFoundError: no file of nowhere")
    assert reason < told.index("tiny · tiny · full, seed 0")


def test_missing_training_images_are_told_once_before_anything_is_trained(store, tmp_path, passes):
    """What was trained before goes on without them."""

    def without(name, split):
        return load("nowhere" if (name, split) == ("stripes", "train") else name, split)

    arguments = {"load": without, "store": store, "results": tmp_path / "rows.jsonl"}
    (failure,) = run(catalogue(SPEC), "tiny", seeds=[0, 1, 2], **arguments)
    assert str(failure) == "training images of stripes: FileNotFoundError: no file of nowhere"
    assert not passes
    go(store, tmp_path, methods=["plus"], seeds=[1])
    assert len(run(catalogue(SPEC), "tiny", methods=["plus"], seeds=[0, 1], **arguments)) == 1
    more = catalogue(SPEC.replace('ood = ["noise"]', 'ood = ["noise", "others"]'))
    assert run(more, "tiny", methods=["plus"], seeds=[1], **arguments) == []


def test_an_unknown_set_may_have_more_classes_than_the_network(store, tmp_path):
    """As CIFAR-100 against CIFAR-10: its labels mean nothing here."""

    def richer(name, split):
        found = load(name, split)
        return replace(found, labels=found.labels + 97) if name == "noise" else found

    arguments = {"load": richer, "store": store, "results": tmp_path / "rows.jsonl"}
    assert run(catalogue(SPEC), "tiny", methods=["full"], **arguments) == []
    assert {row.data for row in rows.load(tmp_path / "rows.jsonl")} == {"stripes", "noise"}


def test_without_known_test_images_nothing_is_trained(store, tmp_path, passes):
    """All other sets are compared with them."""

    def without(name, split):
        return load("nowhere" if (name, split) == ("stripes", "test") else name, split)

    arguments = {"load": without, "store": store, "results": tmp_path / "rows.jsonl"}
    (failure,) = run(catalogue(SPEC), "tiny", methods=["full"], **arguments)
    assert failure.where == "stripes"
    assert not passes


def test_known_test_images_are_not_needed_again(store, tmp_path):
    """Their outputs are in the cache, and their rows are there."""
    go(store, tmp_path, methods=["full"])

    def without(name, split):
        return load("nowhere" if (name, split) == ("stripes", "test") else name, split)

    more = catalogue(SPEC.replace('ood = ["noise"]', 'ood = ["noise", "others"]'))
    arguments = {"load": without, "store": store, "results": tmp_path / "rows.jsonl"}
    assert run(more, "tiny", methods=["full"], **arguments) == []
    assert "others" in {row.data for row in rows.load(tmp_path / "rows.jsonl")}


def test_training_cost_is_kept_with_the_network(store, tmp_path):
    go(store, tmp_path, methods=["plus"])
    go(store, tmp_path, methods=["full"])  # trained already
    costs = {
        (row.method, row.score, row.metric): row.value
        for row in rows.load(tmp_path / "rows.jsonl")
        if row.task == "cost"
    }
    assert costs["plus", "training", "epochs"] == 2
    assert costs["full", "training", "seconds"] == costs["plus", "training", "seconds"] > 0
    assert costs["full", "fit", "seconds"] > 0 == costs["plus", "fit", "seconds"]


def test_a_protocol_is_chosen_by_its_short_name(store, tmp_path):
    go(store, tmp_path, methods=["plus"], protocol="short")
    assert {row.protocol for row in rows.load(tmp_path / "rows.jsonl")} == {"tiny"}
    with pytest.raises(ValueError, match="unknown protocol of experiment 'tiny' 'sort'"):
        go(store, tmp_path, protocol="sort")


def test_data_of_another_size_than_the_split_are_told(store, tmp_path):
    spec = catalogue(SPEC.replace("[240, 60]", "[200, 60]"))
    arguments = {"load": load, "store": store, "results": tmp_path / "rows.jsonl"}
    (failure,) = run(spec, "tiny", methods=["plus"], **arguments)
    assert "has 300 training images; expected 260" in str(failure)


def test_a_file_that_was_cut_amid_a_data_set_gets_all_of_it_again(store, tmp_path):
    go(store, tmp_path, methods=["full"])
    path = tmp_path / "rows.jsonl"
    whole = rows.load(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]) + lines[-3][:40])
    with pytest.warns(rows.RowsWarning):
        assert go(store, tmp_path, methods=["full"]) == []
    again = rows.load(path)
    # Seconds differ where a data set is measured again.
    found = [
        [(row.data, row.metric, row.value) for row in each if row.task != "cost"]
        for each in (whole, again)
    ]
    assert found[0] == found[1]
    assert len(whole) == len(again)


def test_a_seed_given_twice_is_measured_once(store, tmp_path):
    go(store, tmp_path, methods=["plus"], seeds=[1, 1])
    found = rows.load(tmp_path / "rows.jsonl")
    assert len(found) == len({(row.data, row.task, row.score, row.metric) for row in found})


def test_of_two_runs_side_by_side_one_trains(store):
    """The other waits for its network, so that all outputs are of the same one."""
    trained = []

    def train():
        trained.append(Classifier(ConvNet(1, 3, image_size=8, channels=4), "edl"))
        time.sleep(0.2)
        return trained[-1], History((), 0, False)

    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(store.classifier, "key", train) for _ in range(2)]
        one, other = (task.result() for task in tasks)
    assert len(trained) == 1
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(one.predict(images).probs, other.predict(images).probs)


def test_a_damaged_network_in_the_cache_says_what_to_do_and_its_outputs_go_with_it(store, tmp_path):
    go(store, tmp_path, methods=["plus"])
    (model,) = store.folder.glob("*/model.daedl")
    model.write_bytes(model.read_bytes()[:100])
    (failure,) = go(store, tmp_path, methods=["full"])
    assert f"delete the folder {model.parent}" in str(failure)
    model.unlink()
    outputs = model.parent / "noise.safetensors"
    before = outputs.stat().st_mtime_ns
    assert go(store, tmp_path, methods=["full"]) == []
    assert outputs.stat().st_mtime_ns > before


def test_a_failed_cell_does_not_stop_the_others(store, tmp_path, monkeypatch):
    from daedl.methods import DAEDL

    fit = DAEDL.fit

    def failing(self, outputs, targets):
        if self.covariance == "tied":
            raise ValueError("no luck")
        return fit(self, outputs, targets)

    monkeypatch.setattr(DAEDL, "fit", failing)
    (failure,) = go(store, tmp_path, methods=["tied", "full"], seeds=[3])
    assert str(failure) == "tied, seed 3: ValueError: no luck"
    assert {row.method for row in rows.load(tmp_path / "rows.jsonl")} == {"full"}


def test_where_only_unobtainable_sets_are_missing_nothing_is_done(store, tmp_path, passes):
    asking = catalogue(SPEC.replace('ood = ["noise"]', 'ood = ["noise", "nowhere"]'))
    arguments = {"load": load, "store": store, "results": tmp_path / "rows.jsonl"}
    (failure,) = run(asking, "tiny", methods=["full"], **arguments)
    assert failure.where == "nowhere"
    done = sum(passes)
    for network in store.folder.glob("*/model.daedl"):
        network.unlink()
    assert [each.where for each in run(asking, "tiny", methods=["full"], **arguments)] == [
        "nowhere"
    ]
    assert sum(passes) == done


def test_what_another_run_measured_meanwhile_is_not_measured_again(store, tmp_path):
    class Waiting(Store):
        """As one that waits for a network, which another run trains and measures."""

        def classifier(self, key, train):
            if not self.has(key):
                go(store, tmp_path, methods=["full"])
            return super().classifier(key, train)

    assert go(Waiting(store.folder), tmp_path, methods=["full"]) == []
    found = [
        (row.data, row.task, row.score, row.metric) for row in rows.load(tmp_path / "rows.jsonl")
    ]
    assert len(found) == len(set(found))


def test_an_interrupted_run_goes_on(store, tmp_path, monkeypatch):
    """Stopped in the second epoch; the next run trains that one alone."""
    from daedl.training import loop

    once, begun, stops = loop.Run._train_epoch, [], [1]

    def counting(self, epoch, shown):
        begun.append(epoch)
        if epoch in stops:
            raise KeyboardInterrupt
        return once(self, epoch, shown)

    monkeypatch.setattr(loop.Run, "_train_epoch", counting)
    with pytest.raises(KeyboardInterrupt):
        go(store, tmp_path, methods=["full"])
    stops.clear()
    assert go(store, tmp_path, methods=["full"]) == []
    assert begun == [0, 1, 1]
    whole = Store(tmp_path / "whole")
    run(
        catalogue(SPEC),
        "tiny",
        load=load,
        store=whole,
        results=tmp_path / "w.jsonl",
        methods=["full"],
    )
    ours, theirs = (
        [row.value for row in rows.load(tmp_path / name) if row.task != "cost"]
        for name in ("rows.jsonl", "w.jsonl")
    )
    assert ours == theirs


def test_the_seed_alone_decides_the_weights(tmp_path):
    """Those of heads too, which a method puts behind the network."""
    specs = catalogue(SPEC)
    protocol = specs.experiment("tiny").protocol()
    found = []
    for name in ("one", "two"):
        torch.manual_seed(len(found))  # whatever was drawn before in this process
        cell = Cell(protocol, specs.method("flow"), 0, load, Store(tmp_path / name))
        found.append(cell.classifier.network.state_dict())
    assert all(torch.equal(one, two) for one, two in zip(*map(dict.values, found), strict=True))


def test_keys_tell_apart_what_differs():
    tiny = catalogue(SPEC)
    protocol = tiny.protocols["tiny"]
    plus, full, tied = (tiny.method(name) for name in ("plus", "full", "tied"))
    assert training_key(protocol, plus, 0) == training_key(protocol, full, 0)
    assert training_key(protocol, plus, 0) != training_key(protocol, plus, 1)
    assert training_key(protocol, plus, 0) != training_key(protocol, tiny.method("softmax"), 0)
    assert len({cell_key(protocol, m, 0) for m in (plus, full, tied)}) == 3


def test_an_ensemble_is_known_by_the_learning_rate_of_its_members():
    tiny = catalogue(SPEC)
    protocol, pair = tiny.protocols["tiny"], tiny.method("full-pair")
    slower = replace(protocol, rates={"edl+": 1e-4})
    assert slower.training_of(pair)["learning_rate"] == 1e-4
    assert cell_key(protocol, pair, 0) != cell_key(slower, pair, 0)


def test_shipped_experiments_are_whole():
    shipped = catalogue()
    images = [each for each in shipped.experiments.values() if each.kind == "images"]
    assert len(images) == len(shipped.experiments) - 1
    for experiment in images:
        assert experiment.protocol().build().num_classes == 10
        assert all(shipped.method(name) for name in experiment.methods)
    assert shipped.method("exp+de").spectral is None
    assert shipped.method("exp+sn").spectral == shipped.method("daedl").spectral


def test_unknown_names_get_a_suggestion(store, tmp_path):
    with pytest.raises(
        ValueError, match=r"unknown experiment 'mnist-odd'.*did you mean 'mnist-ood'"
    ):
        catalogue().experiment("mnist-odd")
    with pytest.raises(ValueError, match="did you mean 'tied'"):
        go(store, tmp_path, methods=["tie"])


def test_damaged_outputs_are_named(store, tmp_path):
    go(store, tmp_path, methods=["plus"])
    (path,) = store.folder.glob("*/noise.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    (failure,) = go(store, tmp_path, methods=["full"])
    assert str(failure).startswith("full, seed 0, noise: ValueError")
    assert "not a whole file of outputs" in str(failure)
    found = rows.load(tmp_path / "rows.jsonl")
    assert {row.data for row in found if row.method == "full"} == {"stripes"}


def test_an_ensemble_is_made_of_networks_that_were_trained_alone(store, tmp_path, passes):
    """Seed 1 of two members is seeds 2 and 3 of theirs: trained once, for both."""
    go(store, tmp_path, methods=["softmax"], seeds=[2, 3])
    once = sum(passes)
    assert go(store, tmp_path, methods=["pair"], seeds=[1]) == []
    assert sum(passes) == once
    found = rows.load(tmp_path / "rows.jsonl")
    scores = {row.score for row in found if row.method == "pair" and row.task == "ood"}
    assert scores == {"aleatoric", "epistemic"}
    seconds = {
        (row.method, row.seed): row.value
        for row in found
        if (row.task, row.score, row.metric) == ("cost", "training", "seconds")
    }
    members = seconds["softmax", 2] + seconds["softmax", 3]
    assert seconds["pair", 1] == pytest.approx(members)


def test_an_ensemble_predicts_what_its_members_do(store):
    specs = catalogue(SPEC)
    cell = Cell(specs.protocols["tiny"], specs.method("full-pair"), 0, load, store)
    found, _ = cell.predict("noise")
    members = [
        Cell(cell.protocol, specs.method("full"), seed, load, store).predict("noise")[0]
        for seed in (0, 1)
    ]
    mean = torch.stack([each.probs for each in members]).mean(0)
    torch.testing.assert_close(found.probs, mean)
    # The same from images, with what was fitted.
    classifier = Classifier(cell.classifier.network, cell.method)
    classifier.fitted = cell.fitted
    images = load("noise", "test").images.float() / 255
    torch.testing.assert_close(classifier.predict(images).probs, mean)


def test_what_is_fitted_to_validation_data_sees_those(store):
    specs = catalogue(SPEC)
    protocol = specs.protocols["tiny"]
    cell = Cell(protocol, specs.method("temperature"), 0, load, store)
    plain = Cell(protocol, specs.method("softmax"), 0, load, store)
    val, _ = load("stripes", "train").parted(60, 0)
    outputs, targets = plain.classifier.collect(val.batches(60))
    expected = best_temperature(outputs.logits, targets)
    assert cell.fitted.temperature == pytest.approx(expected)
    assert {path.stem for path in store.folder.glob("*/*.safetensors")} == {"val"}


def test_validation_images_are_predicted_by_the_whole_method(store):
    specs = catalogue(SPEC)
    plain, full = (
        Cell(specs.protocols["tiny"], specs.method(name), 0, load, store)
        for name in ("plus", "full")
    )
    prediction, targets = plain.validated()
    assert len(targets) == 60
    kept = min(plain.history.epochs, key=lambda epoch: epoch.val_loss)
    accuracy = (prediction.labels == targets).float().mean().item()
    assert accuracy == pytest.approx(kept.val_accuracy)
    with_density, _ = full.validated()
    assert with_density.density_score is not None
    assert not torch.equal(with_density.probs, prediction.probs)


def test_a_protocol_may_have_a_rate_for_a_method(store):
    specs = catalogue(SPEC)
    softmax, temperature, full = (specs.method(name) for name in ("softmax", "temperature", "full"))
    plain = specs.protocols["tiny"]
    slower = replace(plain, rates={"softmax": 1e-5, "edl+": 2e-5})
    assert slower.training_of(softmax)["learning_rate"] == 1e-5
    assert slower.training_of(temperature)["learning_rate"] == 1e-5  # trained as softmax
    assert slower.training_of(full)["learning_rate"] == 2e-5
    assert slower.training_of(specs.method("fisher")) == plain.training
    assert training_key(slower, softmax, 0) != training_key(plain, softmax, 0)
    history = Cell(slower, softmax, 0, load, store).history
    assert history.epochs[0].learning_rate == 1e-5


def test_methods_have_the_settings_published_for_the_data():
    shipped = catalogue()
    mnist, cifar = (shipped.protocols[name] for name in ("mnist-quick", "cifar10-paper"))
    assert shipped.method("i-edl", mnist).fisher_weight == 0.005
    assert shipped.method("i-edl", cifar).fisher_weight == 0.05
    assert shipped.method("kl-pn", cifar).pixel_mean == cifar.mean
    assert shipped.method("kl-pn", cifar).pixel_std == cifar.std
