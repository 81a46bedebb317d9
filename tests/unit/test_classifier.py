"""The classifier: construction, prediction, saving, loading, pickling and invalid input."""

import copy
import errno
import json
import multiprocessing
import os
import pickle
import re
import resource
import struct
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import daedl
from daedl import storage
from daedl.networks import MLP, ConvNet, FeatureModule

fit = partial(daedl.fit, accelerator="cpu", progress=False)


@pytest.fixture(scope="module")
def trained(blobs):
    torch.manual_seed(0)
    classifier = daedl.Classifier(MLP(4, 3, hidden=(16, 16)), class_names=["cat", "dog", "owl"])
    fit(classifier, blobs, max_epochs=3, learning_rate=1e-2)
    return classifier


@pytest.fixture
def saved(trained, tmp_path):
    trained.save(tmp_path / "model.daedl")
    return tmp_path / "model.daedl"


def test_readme_example():
    torch.manual_seed(0)
    images, targets = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
    model = daedl.Classifier(ConvNet(in_channels=1, num_classes=3, image_size=8), method="daedl")
    history = fit(model, [(images, targets)], [(images, targets)], max_epochs=1)
    assert len(history.epochs) == 1
    p = model.predict(images)
    for tensor, shape in (
        (p.probs, (60, 3)),
        (p.alpha, (60, 3)),
        (p.aleatoric, (60,)),
        (p.epistemic, (60,)),
        (p.density_score, (60,)),
        (p.log_density, (60,)),
        (p.labels, (60,)),
    ):
        assert tensor.shape == shape
        assert not tensor.requires_grad


def test_prediction_needs_one_forward_pass_per_input(trained, blobs):
    seen = []
    hook = trained.network.register_forward_hook(lambda m, inputs, out: seen.append(len(inputs[0])))
    trained.predict(blobs[0], batch_size=200)
    hook.remove()
    assert seen == [200, 200, 200, 10]


def test_predictions_do_not_depend_on_the_batch_size(trained, blobs):
    whole, parts = trained.predict(blobs[0]), trained.predict(blobs[0], batch_size=7)
    torch.testing.assert_close(whole.log_alpha, parts.log_alpha, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="batch_size is 0"):
        trained.predict(blobs[0], batch_size=0)


class TestSaving:
    def test_loads_without_pickle_and_without_training_data(self, saved, trained, monkeypatch):
        for module, name in [
            *((pickle, name) for name in ("load", "loads", "Unpickler")),
            (torch, "load"),
        ]:
            monkeypatch.setattr(module, name, None)
        model = daedl.Classifier.load(saved)
        inputs = torch.ones(2, 4)
        assert torch.equal(model.predict(inputs).probs, trained.predict(inputs).probs)
        assert model.class_names == ["cat", "dog", "owl"]

    def test_description_is_json(self, saved):
        _, description = storage.load(saved)
        assert description["version"] == daedl.__version__
        assert description["network"]["name"] == "MLP"
        assert description["method"]["arguments"]["kl_weight"] == 0.05
        assert description["fitted"]["normalizer"]["name"] == "half-quantile"
        assert description["class_names"] == ["cat", "dog", "owl"]

    def test_class_names_are_saved_and_optional(self, saved, trained):
        assert daedl.Classifier.load(saved).class_names == ["cat", "dog", "owl"]
        twins = pickle.loads(pickle.dumps(trained)), copy.deepcopy(trained)
        assert [twin.class_names for twin in twins] == [["cat", "dog", "owl"]] * 2
        tensors, description = storage.load(saved)
        del description["class_names"]
        storage.save(saved, tensors, description)
        assert daedl.Classifier.load(saved).class_names is None

    def test_equal_models_give_equal_files(self, saved, trained, tmp_path):
        trained.save(tmp_path / "again.daedl")
        assert saved.read_bytes() == (tmp_path / "again.daedl").read_bytes()

    def test_unfitted_models_of_other_methods(self, tmp_path):
        network = daedl.spectral_normalize(
            MLP(4, 3), daedl.SpectralNorm(soft=True, coefficient=2.0)
        )
        classifier = daedl.Classifier(network, "edl", activation="relu").eval()
        classifier.save(tmp_path / "m.daedl")
        again = daedl.Classifier.load(tmp_path / "m.daedl")
        images = torch.randn(5, 4)
        assert again.method.activation == "relu"
        assert torch.equal(again.predict(images).log_alpha, classifier.predict(images).log_alpha)

    def test_custom_networks_are_passed_to_load(self, tmp_path, blobs):
        def own():
            layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            return FeatureModule(layers, features="1", input_shape=(4,))

        classifier = daedl.Classifier(own())
        fit(classifier, blobs, max_epochs=1)
        classifier.save(tmp_path / "own.daedl")
        with pytest.raises(ValueError, match="network="):
            daedl.Classifier.load(tmp_path / "own.daedl")
        again = daedl.Classifier.load(tmp_path / "own.daedl", network=own())
        assert torch.equal(
            again.predict(blobs[0]).log_alpha, classifier.predict(blobs[0]).log_alpha
        )
        with pytest.raises(ValueError, match="can't be rebuilt"):
            daedl.Classifier.load(tmp_path / "own.daedl", network=MLP(4, 3))

    def test_networks_without_spectral_norm_are_copied_exactly(self, trained, blobs, tmp_path):
        twin = copy.deepcopy(trained)
        expected = trained.predict(blobs[0]).log_alpha
        daedl.remove_spectral_norm(twin.network)
        twin.save(tmp_path / "baked.daedl")
        loaded = daedl.Classifier.load(tmp_path / "baked.daedl")
        for other in (twin, loaded, copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
            assert not [name for name in other.network.state_dict() if "parametrizations" in name]
            assert torch.equal(other.predict(blobs[0]).log_alpha, expected)

    def test_headers_that_start_like_a_pickle_load(self, trained, tmp_path):
        """The first bytes are the length of the header, which can start like a pickle."""
        twin, first_bytes = copy.deepcopy(trained), set()
        for length in range(300):
            twin.class_names = ["x" * length, "b", "c"]
            twin.save(tmp_path / "m.daedl")
            first_bytes.add((tmp_path / "m.daedl").read_bytes()[0])
            if first_bytes >= {0x80}:
                break
        assert 0x80 in first_bytes
        assert daedl.Classifier.load(tmp_path / "m.daedl").class_names == twin.class_names

    def test_tied_weights_are_saved(self, tmp_path):
        shared = nn.Linear(4, 4)
        network = FeatureModule(
            nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(4, 3)), "1", (4,)
        )
        classifier = daedl.Classifier(network, "softmax").eval()
        classifier.save(tmp_path / "tied.daedl")
        assert (tmp_path / "tied.daedl").exists()

    def test_parts_that_do_not_fit_the_network_are_not_saved(self, trained, tmp_path):
        twin = copy.deepcopy(trained)
        twin.class_names = ["cat", "dog"]
        with pytest.raises(ValueError, match="2 class names"):
            twin.save(tmp_path / "m.daedl")

    def test_state_dicts_of_fitted_classifiers_are_rejected(self, trained):
        with pytest.raises(ValueError, match="Classifier"):
            daedl.Classifier(MLP(4, 3, hidden=(16, 16))).load_state_dict(trained.state_dict())

    def test_custom_methods_are_passed_to_load(self, tmp_path):
        class Mine(daedl.methods.Softmax):
            name = "mine"

        daedl.Classifier(MLP(4, 3), Mine()).save(tmp_path / "mine.daedl")
        with pytest.raises(ValueError, match="unknown method 'mine'"):
            daedl.Classifier.load(tmp_path / "mine.daedl")
        assert daedl.Classifier.load(tmp_path / "mine.daedl", method=Mine()).method.name == "mine"

    def test_half_precision_round_trip_keeps_the_density(self, trained, blobs):
        twin = copy.deepcopy(trained).half().float()
        assert twin.fitted.density.scatter.dtype == torch.float64
        p, q = trained.predict(blobs[0]), twin.predict(blobs[0])
        torch.testing.assert_close(p.probs, q.probs, rtol=0.05, atol=0.05)


@pytest.mark.slow
def test_spawned_processes_predict_the_same(trained, blobs):
    expected = trained.predict(blobs[0]).probs
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        computed = pool.apply(trained.predict, (blobs[0],))
    assert torch.equal(computed.probs, expected)
    batches = DataLoader(
        [blobs[0]],
        batch_size=None,
        collate_fn=trained.predict,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    assert [torch.equal(batch.probs, expected) for batch in batches] == [True]


class TestDamagedFiles:
    @pytest.mark.parametrize("keep", [0, 5, 100, 0.5, -1])
    def test_truncated(self, saved, keep):
        data = saved.read_bytes()
        saved.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
        with pytest.raises(ValueError, match="truncated"):
            daedl.Classifier.load(saved)

    def test_every_modified_byte_is_detected(self, saved):
        data = saved.read_bytes()
        for position in range(len(data) - 1, 0, -len(data) // 40):
            altered = bytearray(data)
            altered[position] ^= 1
            saved.write_bytes(altered)
            try:
                loaded = daedl.Classifier.load(saved)
            except ValueError as error:
                assert re.search(r"damaged|truncated|format", str(error))  # noqa: PT017
            else:  # the last digit of a float may round to the same number
                loaded.save(saved)
                assert saved.read_bytes() == data

    def test_error_of_unknown_settings_names_both_versions(self, trained, tmp_path):
        path = tmp_path / "newer.daedl"
        trained.save(path)
        tensors, description = storage.load(path)
        description["method"]["arguments"]["invented"] = 1
        storage.save(path, tensors, {**description, "version": "9.9"})
        with pytest.raises(ValueError, match=r"'invented'.*written by daedl 9\.9, this is"):
            daedl.Classifier.load(path)

    def test_modified_settings_are_detected(self, saved):
        self.rewrite(saved, lambda d: d["method"]["arguments"].update(kl_weight=99.0))
        with pytest.raises(ValueError, match="damaged"):
            daedl.Classifier.load(saved)

    def test_newer_format(self, saved):
        self.rewrite(saved, lambda d: d.update(format=99, version="7.0"))
        with pytest.raises(ValueError, match=r"format 99.*7\.0.*upgrade"):
            daedl.Classifier.load(saved)

    def test_pickles_are_rejected_without_running_code(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return open, (str(tmp_path / "was-run"), "w")

        path = tmp_path / "model.daedl"
        path.write_bytes(pickle.dumps(Evil()))
        with pytest.raises(ValueError, match="pickle"):
            daedl.Classifier.load(path)
        torch.save({"evil": Evil()}, path)
        with pytest.raises(ValueError, match="archive"):
            daedl.Classifier.load(path)
        assert not (tmp_path / "was-run").exists()

    def test_missing_and_foreign_files(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no model file"):
            daedl.Classifier.load(tmp_path / "nothing.daedl")
        import safetensors.torch

        safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
        with pytest.raises(ValueError, match="without a daedl description"):
            daedl.Classifier.load(tmp_path / "other.safetensors")

    @staticmethod
    def rewrite(path, change):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        description = json.loads(header["__metadata__"]["daedl"])
        change(description)
        header["__metadata__"]["daedl"] = json.dumps(description)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


class TestFailedWrites:
    def test_full_disk_leaves_the_old_file_unchanged(self, saved, trained):
        """A limit on the file size simulates a full disk."""
        before = saved.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
        try:
            with pytest.raises(OSError, match="cannot write") as caught:
                trained.save(saved)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.errno == errno.EFBIG
        assert saved.read_bytes() == before
        assert list(saved.parent.iterdir()) == [saved]

    def test_folders_links_and_permissions(self, trained, tmp_path):
        with pytest.raises(IsADirectoryError, match="is a folder"):
            trained.save(tmp_path)
        real, link = tmp_path / "real.daedl", tmp_path / "link.daedl"
        trained.save(real)
        real.chmod(0o600)
        link.symlink_to(real)
        trained.save(link)
        assert link.is_symlink()
        assert real.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("kind", ["loop", "pipe"])
    def test_link_loops_and_pipes_are_rejected(self, trained, tmp_path, kind):
        path = tmp_path / "model.daedl"
        if kind == "loop":
            path.symlink_to(path)
        else:
            os.mkfifo(path)
        with pytest.raises(OSError, match=f"{kind}|regular"):
            trained.save(path)
        assert path.is_symlink() or path.is_fifo()
        assert list(tmp_path.iterdir()) == [path]

    def test_pipes_and_links_named_like_temporary_files_are_left(self, trained, tmp_path):
        """Opening a pipe would wait for a writer."""
        path, other = tmp_path / "model.daedl", tmp_path / "other"
        other.touch()
        pipe, link = (tmp_path / f".model.daedl.abcdef1{number}.tmp" for number in range(2))
        os.mkfifo(pipe)
        link.symlink_to(other)
        saving = threading.Thread(target=trained.save, args=(path,), daemon=True)
        saving.start()
        saving.join(10)
        assert not saving.is_alive()
        assert pipe.is_fifo()
        assert link.is_symlink()

    @pytest.mark.skipif(sys.platform != "linux", reason="forks processes")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_temporary_files_of_killed_processes_are_removed(self, trained, tmp_path):
        """A process that still writes keeps its temporary file."""
        path = tmp_path / "m[1].daedl"
        context = multiprocessing.get_context("fork")
        writes = context.Event()

        def write():
            os.fsync = lambda descriptor: writes.set() or time.sleep(600)
            storage.write_atomically(path, b"data")

        with ExitStack() as stack:
            for left in (1, 2):
                writer = context.Process(target=write)
                writer.start()
                stack.callback(writer.join)
                stack.callback(writer.kill)
                assert writes.wait(60)
                writes.clear()
                assert len(list(tmp_path.iterdir())) == left
            writer.kill()
            writer.join()
            trained.save(path)
            assert (
                len(list(tmp_path.iterdir())) == 2
            )  # the model, and what the first process writes
        trained.save(path)
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.skipif(
        not Path("/proc/self").exists(), reason="needs a folder without write permission"
    )
    def test_folder_without_permission(self, trained):
        with pytest.raises(OSError, match="write permission"):
            trained.save("/proc/model.daedl")

    @pytest.mark.parametrize("folder", ["missing", "file"])
    def test_unwritable_folder(self, trained, tmp_path, folder):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(OSError, match="cannot write"):
            trained.save(tmp_path / folder / "model.daedl")


class TestInvalidInput:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_nan_and_infinite_inputs(self, trained, value):
        images = torch.zeros(3, 4)
        images[1, 2] = value
        with pytest.raises(
            ValueError, match=r"inputs: 1 of 12 values are NaN or infinite.*\(1, 2\)"
        ):
            trained.predict(images)

    @pytest.mark.parametrize("covariance", ["full", "tied", "diagonal"])
    @pytest.mark.parametrize("size", [1e20, 1e37])
    def test_large_finite_inputs_are_valid(self, blobs, covariance, size):
        torch.manual_seed(0)
        classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), covariance=covariance)
        classifier.fit_post_hoc([blobs])
        p = classifier.predict(torch.full((2, 4), size))
        assert torch.isfinite(p.probs).all()
        assert torch.isfinite(p.log_density).all()

    def test_inputs_that_overflow_the_network_are_rejected(self, trained):
        """A layer multiplies the largest float32 by up to 3, the coefficient of its normalisation."""
        with pytest.raises(ValueError, match=r"features.*unscaled"):
            trained.predict(torch.full((2, 4), 3e38))

    def test_infinite_features(self, trained):
        outputs, _ = trained.collect([(torch.zeros(2, 4), torch.tensor([0, 1]))])
        broken = outputs._replace(features=outputs.features / 0)
        with pytest.raises(ValueError, match=r"features:.*NaN or infinite"):
            trained.predict_outputs(broken)

    def test_shapes_channels_and_types(self):
        classifier = daedl.Classifier(ConvNet(1, 3, image_size=8, channels=4), "softmax")
        expects = r"the network expects \(batch, 1, 8, 8\)"
        for shape in ((2, 3, 8, 8), (2, 1, 9, 8), (8,), (2, 2, 1, 8, 8)):
            with pytest.raises(ValueError, match=expects):
                classifier.predict(torch.zeros(shape))
        with pytest.raises(ValueError, match="empty"):
            classifier.predict(torch.zeros(0, 1, 8, 8))
        with pytest.raises(TypeError, match="NoneType"):
            classifier.predict(None)
        bare = daedl.Classifier(MLP(4, 3), "softmax")
        with pytest.raises(TypeError, match="no preprocessing"):
            bare.predict(torch.zeros(2, 4, dtype=torch.int64))

    def test_density_effect_without_density(self):
        with pytest.raises(ValueError, match="no fitted density"):
            daedl.Classifier(MLP(4, 3), "edl").density_effect([])

    def test_features_of_another_network(self, trained):
        outputs, _ = trained.collect([(torch.zeros(2, 4), torch.tensor([0, 1]))])
        foreign = outputs._replace(features=torch.zeros(2, 84))
        with pytest.raises(ValueError, match="16 columns"):
            trained.predict_outputs(foreign)

    def test_empty_loader(self, trained):
        with pytest.raises(ValueError, match="no batch"):
            trained.collect([])

    def test_construction(self):
        with pytest.raises(TypeError, match="expected a name"):
            daedl.Classifier(MLP(4, 3), daedl.methods.EDL)
        with pytest.raises(ValueError, match="spectrally normalised"):
            daedl.Classifier(
                daedl.Classifier(MLP(4, 3)).network, spectral=daedl.SpectralNorm(soft=True)
            )
        with pytest.raises(TypeError, match="from_module"):
            daedl.Classifier(nn.Linear(4, 3))
        with pytest.raises(ValueError, match=r"unknown method 'deadl'.*did you mean 'daedl'"):
            daedl.Classifier(MLP(4, 3), "deadl")
        with pytest.raises(TypeError, match="kl_weight"):
            daedl.Classifier(MLP(4, 3), daedl.methods.EDL(), kl_weight=2)
        with pytest.raises(ValueError, match=r"unknown setting of daedl 'kl_wight'.*'kl_weight'"):
            daedl.Classifier(MLP(4, 3), "daedl", kl_wight=2)

    def test_class_names(self):
        with pytest.raises(ValueError, match="2 class names"):
            daedl.Classifier(MLP(4, 3), class_names=["a", "b"])
        with pytest.raises(ValueError, match="'a' more than once"):
            daedl.Classifier(MLP(4, 3), class_names=["a", "b", "a"])
        with pytest.raises(TypeError, match="list of strings"):
            daedl.Classifier(MLP(4, 3), class_names=[0, 1, 2])
        with pytest.raises(TypeError, match="list of strings"):
            daedl.Classifier(MLP(4, 3), class_names="cat")


def test_new_files_have_default_permissions(saved):
    plain = saved.with_name("plain")
    plain.touch()
    assert saved.stat().st_mode == plain.stat().st_mode
