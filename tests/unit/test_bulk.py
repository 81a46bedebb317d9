"""Predictions of files and densities of parts in one process; tests/bench/test_ray.py has Ray."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import daedl
from daedl.bulk import Labelled, find_parts, fit_density, predict_files
from daedl.bulk.parts import CHUNK
from daedl.cli import app
from daedl.cli.bulk import show_rows
from daedl.density.scorer import RANGE
from daedl.engines import connect
from daedl.networks import MLP, ConvNet


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def vectors():
    """Features (N, 4) of three classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (2500,), generator=generator)
    return torch.randn(2500, 4, generator=generator) + 2 * labels[:, None], labels


@pytest.fixture(scope="module")
def model(vectors, tmp_path_factory):
    torch.manual_seed(0)
    classifier = daedl.Classifier(MLP(4, 3, (8,)), class_names=["x", "y", "z"])
    classifier.fit_post_hoc(vectors)
    path = tmp_path_factory.mktemp("bulk") / "model.daedl"
    classifier.save(path)
    return path


@pytest.fixture(scope="module")
def table(vectors, tmp_path_factory):
    """A Parquet file in three row groups, with rows of features in several forms."""
    inputs, labels = vectors
    columns = {
        "id": [None if number == 3 else number for number in range(2500)],
        "features": list(inputs.numpy()),
        "class": [["x", "y", "z"][label] for label in labels],
        "number": labels.numpy(),
        **{f"x{number}": inputs[:, number].numpy() for number in range(4)},
    }
    path = tmp_path_factory.mktemp("table") / "table.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=1100)
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder of five images, two of them unreadable, and a text file."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for name in ("a.png", "b.png", "more/c.png"):
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    (tmp_path / "photos" / "zero.png").write_bytes(b"")
    (tmp_path / "photos" / "notes.txt").write_text("kept")
    return tmp_path / "photos"


@pytest.fixture(scope="module")
def camera(tmp_path_factory):
    """A model of images."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60, 1, 8, 8), generator=generator, dtype=torch.uint8)
    classifier = daedl.Classifier(ConvNet(1, 3, image_size=8, channels=4))
    path = tmp_path_factory.mktemp("camera") / "model.daedl"
    classifier.fit_post_hoc((images, torch.arange(60) % 3)).save(path)
    return path


class TestParts:
    def test_parts_cover_every_row_once_and_in_order(self, table, vectors):
        assert CHUNK < 1100  # so that a row group is more than one chunk
        for size in (300, 1024, 5000):
            parts = find_parts([table], size)
            chunks = [chunk for part in parts for chunk in part.batches(["features"], ["id"])]
            assert np.concatenate([place["row"] for place, _ in chunks]).tolist() == list(
                range(2500)
            )
            rows = np.concatenate([batch["features"] for _, batch in chunks])
            assert np.array_equal(rows, vectors[0].numpy())
            assert sum(map(len, parts)) == 2500
            assert max(map(len, parts)) <= size

    def test_folders_of_either_kind(self, table, folder, tmp_path):
        assert [len(part) for part in find_parts([folder], 2)] == [2, 2, 1]
        assert len(find_parts([table.parent, table])) == 3  # the file is listed once
        with pytest.raises(ValueError, match="5 images and 1 Parquet"):
            find_parts([folder, table])
        (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError, match="0 images"):
            find_parts([tmp_path / "empty"])

    def test_a_truncated_file(self, table, tmp_path):
        (tmp_path / "cut.parquet").write_bytes(table.read_bytes()[:-10])
        with pytest.raises(ValueError, match=r"cut\.parquet can't be read"):
            find_parts([tmp_path / "cut.parquet"])


class TestPredict:
    def test_rows_equal_predictions_in_memory(self, model, table, vectors, tmp_path):
        out = tmp_path / "scores.parquet"
        scored = predict_files(model, [table], out, column="features", keep=["id"], part_size=1024)
        assert (scored.rows, scored.broken, scored.kept) == (2500, 0, 0)
        written = pq.read_table(out).to_pydict()
        records = daedl.Classifier.load(model).predict(vectors[0]).records()
        for name in set(records[0]) - {"probs"}:
            got, expected = written[name], [record[name] for record in records]
            if isinstance(expected[0], float):
                # Row groups end batches elsewhere, which changes the rounding.
                assert got == pytest.approx(expected, rel=1e-4, abs=1e-5), name
            else:
                assert got == expected, name
        assert written["id"][:5] == [0, 1, 2, None, 4]  # as integers
        assert written["row"] == list(range(2500))
        assert set(written["file"]) == {str(table)}
        assert set(written["error"]) == {None}

    def test_columns_and_outputs(self, model, table, tmp_path):
        one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
        predict_files(model, [table], one, column="features", outputs=["label", "probs"])
        predict_files(model, [table], other, column=["x0", "x1", "x2", "x3"], outputs=["label"])
        assert pq.read_table(one)["label"] == pq.read_table(other)["label"]
        assert np.allclose(np.sum(pq.read_table(one)["probs"].to_pylist(), axis=1), 1)

    def test_a_job_continues_and_a_finished_one_is_kept(self, model, table, tmp_path):
        def interrupted(counts, total, done):
            for number, count in enumerate(counts):
                if number == 3:
                    raise KeyboardInterrupt
                yield count

        out, parts = tmp_path / "scores.parquet", tmp_path / ".scores.parquet.parts"
        options = {"column": "features", "part_size": 500}
        with pytest.raises(KeyboardInterrupt):
            predict_files(model, [table], out, progress=interrupted, **options)
        assert not out.exists()
        before = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.parquet")}
        assert 3 <= len(before) < 7
        damaged = parts / min(before)
        damaged.write_bytes(damaged.read_bytes()[:-4])  # by another program: ours are complete
        scored = predict_files(model, [table], out, **options)
        assert (scored.rows, scored.kept) == (2500, len(before) - 1)
        after = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
        assert {name for name in before if after[name] == before[name]} == {*before} - {
            damaged.name
        }
        assert not parts.exists()
        assert predict_files(model, [table], out, **options).kept == len(after) == 7

    def test_results_of_another_job_are_not_touched(self, model, table, tmp_path):
        out = tmp_path / "scores.parquet"
        predict_files(model, [table], out, column="features")
        held = {path.name: path.read_bytes() for path in out.iterdir()}
        with pytest.raises(FileExistsError, match="other content"):
            predict_files(model, [table], out, column="features", keep=["id"])
        other = daedl.Classifier.load(model)
        other.class_names = ["u", "v", "w"]
        other.save(tmp_path / "other.daedl")
        with pytest.raises(FileExistsError, match="other content"):
            predict_files(tmp_path / "other.daedl", [table], out, column="features")
        assert {path.name: path.read_bytes() for path in out.iterdir()} == held

    def test_a_job_that_failed_in_its_first_part_does_not_block_the_corrected_one(
        self, model, table, tmp_path
    ):
        out, parts = tmp_path / "scores.parquet", tmp_path / ".scores.parquet.parts"
        with pytest.raises(ValueError, match="shape"):
            predict_files(model, [table], out, column="x0")
        assert [path.name for path in parts.iterdir()] == ["_daedl.json"]
        assert predict_files(model, [table], out, column="features").rows == 2500
        assert not parts.exists()
        (tmp_path / "other.parquet").mkdir()
        (tmp_path / "other.parquet" / "notes.txt").touch()
        with pytest.raises(FileExistsError, match="other content"):
            predict_files(model, [table], tmp_path / "other.parquet", column="features")

    def test_columns_that_a_file_lacks_are_named_before_anything_is_written(
        self, model, table, tmp_path
    ):
        second = tmp_path / "second.parquet"
        pq.write_table(pa.table({"embedding": [[0.0] * 4]}), second)
        out = tmp_path / "scores.parquet"
        with pytest.raises(ValueError, match=r"second\.parquet has no column features"):
            predict_files(model, [table, second], out, column="features")
        with pytest.raises(ValueError, match="--column"):
            predict_files(model, [table], out)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["second.parquet"]

    def test_files_without_rows_are_no_images(self, model, table, tmp_path):
        none, out = tmp_path / "none.parquet", tmp_path / "out.parquet"
        pq.write_table(pq.read_table(table).slice(0, 0), none)
        with pytest.raises(ValueError, match=r"none\.parquet has no row"):
            predict_files(model, [none], out, column="features")
        assert predict_files(model, [none, table], out, column="features").rows == 2500

    def test_a_missing_file_is_named(self, model, tmp_path):
        with pytest.raises(FileNotFoundError, match="check the path"):
            predict_files(model, [tmp_path / "no.parquet"], tmp_path / "out.parquet")

    def test_names_that_collide(self, model, tmp_path):
        path = tmp_path / "in.parquet"
        pq.write_table(pa.table({"v": [[0.0] * 4], "label": [1]}), path)
        with pytest.raises(ValueError, match="names of scores"):
            predict_files(model, [path], tmp_path / "out.parquet", column="v", keep=["label"])
        assert not (tmp_path / "out.parquet").exists()

    def test_vectors_of_another_length_name_the_rows(self, model, tmp_path):
        path = tmp_path / "in.parquet"
        pq.write_table(pa.table({"v": [[0.0] * 5] * 3}), path)
        with pytest.raises(ValueError, match=r"in\.parquet, rows 0 to 2: .*\(3, 5\)"):
            predict_files(model, [path], tmp_path / "out.parquet")

    def test_missing_values_have_an_error_and_no_score(self, model, tmp_path):
        path = tmp_path / "in.parquet"
        pq.write_table(pa.table({"v": [[0.0] * 4, None, [float("nan")] * 4, [1.0] * 4]}), path)
        assert predict_files(model, [path], tmp_path / "out.parquet").broken == 2
        written = pq.read_table(tmp_path / "out.parquet").to_pydict()
        assert written["error"] == [None, "no value", "NaN or infinite values", None]
        for name in ("label", "class_name", "probability", "epistemic"):
            assert [value is None for value in written[name]] == [False, True, True, False]


class TestCommand:
    def test_a_folder_of_images_equals_the_csv(self, camera, folder, tmp_path):
        out = tmp_path / "scores.parquet"
        result = call("predict", camera, folder, "--out", out)
        assert result.exit_code == 1  # as without Parquet: images were skipped
        assert "2 can't be read" in result.stderr
        assert call("predict", camera, folder, "--out", out, "--skip-broken").exit_code == 0
        rows = {row["file"]: row for row in pq.read_table(out).to_pylist()}
        call("predict", camera, folder, "--format", "json", "--out", tmp_path / "x.json")
        for record in json.loads((tmp_path / "x.json").read_text()):
            record.pop("probs")
            row = rows.pop(record["file"])
            assert row.pop("error") is None
            for name in row:
                value = record[name]
                expected = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
                assert row[name] == expected, name
        assert {name.rpartition("/")[2] for name in rows} == {"broken.png", "zero.png"}

    def test_names_that_are_not_utf8(self, camera, folder, tmp_path):
        os.rename(folder / "a.png", os.fsencode(folder) + b"/\xff.png")
        predict_files(camera, [folder], tmp_path / "scores.parquet")
        files = pq.read_table(tmp_path / "scores.parquet")["file"].to_pylist()
        assert f"{folder}/\\xff.png" in files

    def test_progress_without_a_terminal(self, capsys, monkeypatch):
        monkeypatch.setattr("daedl.cli.bulk.INTERVAL", 0.0)
        assert list(show_rows(iter([2, 3]), total=12, done=5)) == [2, 3]
        first, second = capsys.readouterr().err.splitlines()
        assert first.startswith("7 of 12 rows")
        assert second.startswith("10 of 12 rows")

    def test_options_that_need_parquet(self, camera, folder, table):
        assert "pass --out scores.parquet" in call("predict", camera, table).stderr
        assert "pass --out" in call("predict", camera, folder, "--engine", "ray").stderr
        assert "--out NAME.parquet" in call("predict", camera, folder, "--keep", "id").stderr

    @pytest.mark.slow
    def test_a_killed_command_continues(self, model, table, vectors, tmp_path):
        """Killed with SIGKILL while it writes; what it finished is not computed again."""
        many = tmp_path / "many.parquet"
        with pq.ParquetWriter(many, pq.read_schema(table)) as writer:
            for _ in range(30):
                writer.write_table(pq.read_table(table), row_group_size=500)
        out, parts = tmp_path / "scores.parquet", tmp_path / ".scores.parquet.parts"
        options = [str(model), str(many), "--column", "features", "--out", str(out)]
        command = [sys.executable, "-m", "daedl", "predict", *options]
        with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
            while len(list(parts.glob("part-*.parquet"))) < 3 and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert not out.exists()
        kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*.parquet")}
        result = call("predict", *options)
        assert result.exit_code == 0, result.output
        assert f"finished {len(kept)} parts" in result.stderr
        assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
        assert pq.read_table(out)["row"].to_pylist() == list(range(30 * 2500))


def assert_equal_density(one, other):
    """Raises unless two scorers agree to 1e-9."""
    assert one.density.structure == other.density.structure
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-9, atol=1e-9)
    for name in ("low", "high"):
        expected = getattr(one.normalizer, name)
        assert getattr(other.normalizer, name) == pytest.approx(expected, rel=1e-9)
    assert other.reference == pytest.approx(one.reference, rel=1e-9)


class TestFit:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"covariance": "tied", "leave_one_out": False, "normalizer": "minmax"},
            {"covariance": "low-rank", "rank": 2},
            {"covariance": "diagonal", "normalize_features": True},
            {"covariance": "tied-low-rank", "rank": 2},
        ],
    )
    def test_parts_of_any_size_give_the_density_of_all(self, vectors, settings):
        inputs, labels = (torch.cat([each] * 2) for each in vectors)  # more than the sample
        torch.manual_seed(0)
        # In float32 the network itself rounds differently in other batches.
        model = daedl.Classifier(MLP(4, 3, (8,)), **settings).double()
        model.fit_post_hoc((inputs, labels))
        whole, revisions = model.fitted, model.revisions
        sizes = [1, 700, 40, 1100, len(labels) - 1841]
        parts = list(zip(torch.split(inputs, sizes), torch.split(labels, sizes), strict=True))
        assert_equal_density(whole, fit_density(model, parts).fitted)
        assert model.revisions == revisions

    @pytest.mark.slow
    @pytest.mark.parametrize("leave_one_out", [True, False])
    def test_a_range_of_some_of_many_samples(self, vectors, leave_one_out):
        torch.manual_seed(0)
        inputs, labels = (torch.cat([each] * 54) for each in vectors)
        model = daedl.Classifier(MLP(4, 3, (3,)), leave_one_out=leave_one_out).double()
        data = inputs + 0.1 * torch.randn(inputs.shape), labels
        whole = model.fit_post_hoc(data).fitted
        assert len(labels) > 2 * RANGE
        parts = zip(*(torch.split(each, 3001) for each in data), strict=True)
        assert_equal_density(whole, fit_density(model, list(parts)).fitted)

    def test_the_pilot_is_the_first_samples_of_each_class(self, vectors):
        inputs, labels = (torch.cat([each] * 2) for each in vectors)
        labels = torch.where(torch.arange(len(labels)) < 400, 2, labels)  # the others come late
        model = daedl.Classifier(MLP(4, 3, (8,)), covariance="tied-low-rank", rank=2).double()
        whole = model.fit_post_hoc((inputs, labels)).fitted
        parts = zip(inputs.split(77), labels.split(77), strict=True)
        assert_equal_density(whole, fit_density(model, list(parts)).fitted)

    def test_labelled_rows(self, model, table, vectors):
        classifier = daedl.Classifier.load(model)
        parts = find_parts([table], 400)
        for label in ("class", "number"):
            scorer = daedl.Scorer(model, column="features")
            labelled = [Labelled(part, scorer, label) for part in parts]
            fitted = fit_density(daedl.Classifier.load(model), labelled).fitted
            assert_equal_density(classifier.fitted, fitted)
        labelled = [Labelled(part, daedl.Scorer(model, column="features"), "id") for part in parts]
        with pytest.raises(ValueError, match=r"table\.parquet has no label in rows 3;"):
            fit_density(classifier, labelled)

    @pytest.mark.parametrize(
        ("labels", "match"),
        [
            ([0, 1, None, 2, None], "no label in rows 2, 4;"),
            (["x", None, "y", "z", "x"], "no label in rows 1;"),
            ([0.0, 1.0, 2.0, 0.0, 1.0], "float64"),
        ],
    )
    def test_labels_that_are_missing_or_no_classes(self, model, tmp_path, labels, match):
        path = tmp_path / "in.parquet"
        pq.write_table(pa.table({"v": [[0.0] * 4] * 5, "label": labels}), path)
        out = tmp_path / "out.daedl"
        result = call("refit", model, "--data", path, "--column", "v", "--out", out)
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)  # no traceback
        assert "in.parquet" in result.stderr
        assert match in result.stderr
        assert not out.exists()

    def test_methods_without_mergeable_statistics(self, vectors):
        model = daedl.Classifier(MLP(4, 3), "knn")
        with pytest.raises(ValueError, match="'knn' has no density"):
            fit_density(model, [vectors])

    def test_refit_with_a_parquet_file(self, model, table, tmp_path):
        path = tmp_path / "model.daedl"
        path.write_bytes(model.read_bytes())
        options = "--column", "features", "--label", "class"
        result = call("refit", path, "--data", table, "--set", "covariance=tied", *options)
        assert result.exit_code == 0, result.output
        assert daedl.Classifier.load(path).fitted.density.structure == "tied"
        assert sorted(each.name for each in tmp_path.iterdir()) == ["model.daedl"]
        result = call("refit", path, "--data", table, "--column", "features", "--label", "no")
        assert result.exit_code == 1
        assert "no column no" in result.stderr


def test_unknown_engines():
    with pytest.raises(ValueError, match="expected one of local, ray"), connect("spark"):
        pass
