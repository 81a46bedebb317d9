"""`daedl train --text`: from a CSV of texts to a model that is evaluated, calibrated and served."""

import json
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from starlette.testclient import TestClient
from typer.testing import CliRunner

import daedl
from daedl.bulk.parts import CHUNK
from daedl.cli import app
from daedl_bench.memory import memory, reset_peak
from tiny_encoder import TOPICS, sentences, write_csv, write_encoder

pytest.importorskip("transformers")
JSON = {"Content-Type": "application/json"}


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def train(folder, out, *more, data="train.csv"):
    columns = ("--text", "query", "--label", "intent", "--encoder", folder / "encoder")
    return call("train", "--data", folder / data, "--out", out, *columns, *more)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_encoder(folder / "encoder")
    for seed, (name, number) in enumerate({"train": 240, "held_out": 120, "test": 60}.items()):
        write_csv(folder / f"{name}.csv", sentences(number, seed))
    (folder / "other.txt").write_text("zzz qqq\nqqq zzz zzz qqq\nzzz\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(texts):
    result = train(texts, texts / "model.daedl", "--cache", texts / "cache")
    assert result.exit_code == 0, result.output
    shutil.move(
        texts / "encoder", texts / "gone"
    )  # models need neither the encoder nor its package
    yield texts / "model.daedl", result.output
    shutil.move(texts / "gone", texts / "encoder")


def test_texts_become_an_accurate_model(trained, texts):
    path, output = trained
    assert "192 training texts, 48 held out" in output
    assert f"daedl calibrate {path} --data HELD_OUT_TEXTS --reject 0.05" in output
    assert f"daedl serve {path}" in output
    model = daedl.Classifier.load(path)
    assert model.class_names == sorted(TOPICS)
    pairs = sentences(60, seed=2)
    found = model.predict([text for text, _ in pairs])
    names = [each["class_name"] for each in found.records()]
    right = [name == topic for name, (_, topic) in zip(names, pairs, strict=True)]
    assert sum(right) > 54
    one = model.predict(pairs[0][0])
    torch.testing.assert_close(one.probs, found.probs[:1], rtol=1e-4, atol=1e-5)
    assert model.trained_on["samples"] == 192
    assert (texts / "cache").is_dir()


def test_the_model_is_calibrated_evaluated_and_described(trained, texts, tmp_path):
    model = tmp_path / "calibrated.daedl"
    limits = ("--reject", 0.1, "--out", model, "--plot", tmp_path / "plot.png")
    result = call("calibrate", trained[0], "--data", texts / "held_out.csv", *limits)
    assert result.exit_code == 0, result.output
    report = ("--report", tmp_path / "report.html", "--format", "json")
    unknown = texts / "other.txt"
    result = call("evaluate", model, "--id", texts / "test.csv", "--ood", unknown, *report)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    accuracy = [row["value"] for row in rows if row["metric"] == "accuracy"]
    auroc = [r["value"] for r in rows if (r["metric"], r["score"]) == ("auroc", "epistemic")]
    assert accuracy[0] > 0.9
    assert auroc[0] > 0.8
    assert "<q>zzz" in (tmp_path / "report.html").read_text("utf-8")
    result = call("predict", model, "pay the bill", texts / "other.txt", "--format", "json")
    records = json.loads(result.stdout)
    assert [each["text"] for each in records][:2] == ["pay the bill", "zzz qqq"]
    assert records[0]["class_name"] == "money"
    result = call("info", model)
    assert "texts" in result.output
    assert len(result.output) < 4000  # not the whole tokenizer
    result = call("refit", model, "--data", texts / "train.csv", "--out", tmp_path / "again.daedl")
    assert result.exit_code == 0, result.output
    result = call("export", model, tmp_path / "model.onnx")
    assert result.exit_code == 1
    assert "reads texts" in result.output


def test_parquet_results_need_parquet_files_of_texts(trained, texts, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    for source in (texts / "test.csv", texts / "other.txt", tmp_path / "photos", "pay the bill"):
        result = call("predict", trained[0], source, "--out", tmp_path / "s.parquet")
        assert result.exit_code == 1
        assert "Parquet files with a column of texts" in result.output
        assert [each.name for each in tmp_path.iterdir()] == ["photos"]
    pairs = sentences(9)
    pq.write_table(pa.table({"query": [text for text, _ in pairs]}), tmp_path / "in.parquet")
    out = tmp_path / "s.parquet"
    result = call("predict", trained[0], tmp_path / "in.parquet", "--out", out)
    assert result.exit_code == 0, result.output
    found = pq.read_table(out)["class_name"].to_pylist()
    assert sum(name == topic for name, (_, topic) in zip(found, pairs, strict=True)) > 7


def test_fine_tuning_trains_the_last_layers_only(texts, tmp_path):
    source = texts / ("encoder" if (texts / "encoder").exists() else "gone")
    columns = ("--text", "query", "--label", "intent", "--encoder", source, "--cache", "none")
    out = tmp_path / "tuned.daedl"
    result = call(
        "train", "--data", texts / "train.csv", "--out", out, "--epochs", 2, "--finetune", *columns
    )
    assert result.exit_code == 0, result.output
    tuned = daedl.Classifier.load(out)
    published = daedl.Classifier.from_backbone(f"text:{source}", 3).network.state_dict()
    changed = {
        name
        for name, value in tuned.network.state_dict().items()
        if "encoder" in name and not torch.equal(value, published[name])
    }
    assert any("layer.2" in name for name in changed)
    assert not any("layer.0" in name or "embeddings" in name for name in changed)
    tuned.network.train()
    dropout = [m for m in tuned.network.modules() if isinstance(m, torch.nn.Dropout)]
    assert not dropout[0].training  # of the frozen embeddings
    assert dropout[-1].training


def test_a_csv_file_without_columns_suggests_them(texts, tmp_path):
    result = call("train", "--data", texts / "train.csv", "--out", tmp_path / "model.daedl")
    assert result.exit_code == 1
    assert "--text COLUMN --label COLUMN" in result.output
    assert "--target COLUMN" in result.output
    missing = call("train", "--data", tmp_path / "no.csv", "--out", tmp_path / "model.daedl")
    assert "check the path" in missing.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rows", "more", "match"),
    [
        (None, (), "no file"),
        ([("a", "x"), ("b", "")], (), "line 3"),
        ([("a", "x"), (" ", "y")], (), "empty"),
        ([("a", "x"), ("b", "x")], (), "one class"),
        ([("a", "x"), ("b", "y")], ("--text", "quary"), "did you mean 'query'"),
        ([("a", "x"), ("b", "y")], ("--encoder", "nowhere"), "can't be loaded"),
        ([("a", "x"), ("b", "y")], ("--encoder", "efficientnet-lite0"), "is for images"),
        ([("a", "x"), ("b", "y")], ("--network", "vgg16"), "--network"),
    ],
)
def test_unusable_data_are_explained_and_nothing_is_written(texts, tmp_path, rows, more, match):
    if rows is not None:
        write_csv(tmp_path / "data.csv", rows)
    out = tmp_path / "model.daedl"
    options = {"--text": "query", "--label": "intent", "--encoder": texts / "gone"}
    options |= dict(zip(more[::2], more[1::2], strict=True))
    flat = [part for pair in options.items() for part in pair]
    result = call("train", "--data", tmp_path / "data.csv", "--out", out, *flat)
    assert result.exit_code == 1
    assert match in result.output
    assert [each.name for each in tmp_path.iterdir()] in ([], ["data.csv"])


def test_a_missing_package_is_named(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    data = write_csv(tmp_path / "data.csv", sentences(9))
    columns = ("--text", "query", "--label", "intent")
    result = call("train", "--data", data, "--out", tmp_path / "model.daedl", *columns)
    assert result.exit_code == 1
    assert "daedl[text]" in result.output
    assert [each.name for each in tmp_path.iterdir()] == ["data.csv"]


def test_columns_are_named_in_training_and_empty_rows_skipped_in_refit(trained, tmp_path):
    pairs = sentences(30)
    other = write_csv(tmp_path / "other.csv", pairs, ("words", "intent"))
    for command in (("predict", trained[0], other), ("evaluate", trained[0], "--id", other)):
        result = call(*command)
        assert result.exit_code == 1
        assert "in training, with --text" in " ".join(result.output.split())
    empty = write_csv(tmp_path / "empty.csv", [*pairs, ("", "money")])
    refit = ("refit", trained[0], "--data", empty, "--out", tmp_path / "model.daedl")
    assert "--skip-broken" in call(*refit).output
    assert call(*refit, "--skip-broken").exit_code == 0


def test_broken_texts_of_a_parquet_file_are_named_with_the_file(trained, tmp_path):
    path = tmp_path / "in.parquet"
    texts = ["pay"] * (CHUNK + 1) + [""]
    pq.write_table(pa.table({"query": texts, "intent": ["money"] * len(texts)}), path)
    options = ("--column", "query", "--label", "intent", "--out", tmp_path / "model.daedl")
    result = call("refit", trained[0], "--data", path, *options)
    assert result.exit_code == 1
    assert f"in.parquet: row {CHUNK + 1} can't be read (no text)" in " ".join(result.output.split())
    assert "skip" not in result.output


def test_a_column_of_numbers_is_no_column_of_texts(trained, tmp_path):
    path, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    for values in ([1.5, 2.0], [b"pay", None]):
        pq.write_table(pa.table({"query": values}), path)
        result = call("predict", trained[0], path, "--out", out)
        assert result.exit_code == 1
        assert "expected texts" in result.output
        assert not out.exists()
    missing = np.array([None, float("nan")], object)
    assert list(daedl.Scorer(trained[0], skip_broken=True)(missing)["label"]) == [-1, -1]


def test_unknown_labels_and_empty_texts_are_rejected(trained, tmp_path):
    model = daedl.Classifier.load(trained[0])
    data = write_csv(tmp_path / "new.csv", [("pay the bill", "money"), ("goal", "sports")])
    with pytest.raises(ValueError, match="sports"):
        model.calibrate(data)
    with pytest.raises(ValueError, match="empty"):
        model.predict(["pay", "  "])
    with pytest.raises(TypeError, match="text"):
        model.predict(torch.zeros(1, 4))
    (tmp_path / "latin.csv").write_bytes("query,intent\ncafé,x\n".encode("latin-1"))
    with pytest.raises(ValueError, match="UTF-8"):
        model.predict(tmp_path / "latin.csv")


def test_the_server_predicts_texts(trained):
    from daedl.serving import create_app

    model = daedl.Classifier.load(trained[0])
    with TestClient(create_app(model), base_url="http://localhost") as client:
        described = client.get("/model").json()
        assert (described["accepts_texts"], described["accepts_images"]) == (True, False)
        one = client.post("/predict", json={"text": "pay the bill"})
        assert one.status_code == 200, one.text
        assert one.json()["class_name"] == "money"
        many = client.post("/predict/batch", json={"texts": ["rain and snow", "jazz band"]}).json()
        names = [each["class_name"] for each in many["predictions"]]
        assert names == ["weather", "music"]
        for body, status in (
            ({"text": " "}, 422),
            ({"text": 3}, 422),
            ({"array": [1]}, 422),
            ({"texts": ["a"]}, 422),
        ):
            assert client.post("/predict", json=body).status_code == status
        for raw, status, reason in (
            (b'{"text": "\\ud800"}', 400, "isn't JSON"),
            (b'{"text": "\xff"}', 400, "isn't JSON"),
            (b'{"other": ' + b"[" * 100_000, 400, "isn't JSON"),
            (b"[" * 100_000, 422, "array"),
        ):
            other = client.post("/predict", content=raw, headers=JSON)
            assert (other.status_code, reason in other.text) == (status, True), other.text
        before = reset_peak()
        lists = client.post(
            "/predict/batch", content=b'{"texts": [' + b"[]," * 2_000_000 + b"[]]}", headers=JSON
        )
        assert (lists.status_code, memory("VmHWM") - before < 50) == (422, True)
        too_many = client.post("/predict/batch", json={"texts": ["a"] * 65})
        assert too_many.status_code == 413
        assert described["image_types"] == []
        none = client.post("/predict/batch", json={"texts": []})
        assert (none.status_code, "list of texts" in none.text) == (422, True)
        for kind in ("image/png", "application/x-www-form-urlencoded"):
            other = client.post("/predict", content=b"x", headers={"Content-Type": kind})
            assert other.status_code == 415
            assert "expected application/json:" in other.text
        schema = client.get("/openapi.json").json()
        body = schema["paths"]["/predict"]["post"]["requestBody"]["content"]
        assert list(body) == ["application/json"]
        assert "text" in body["application/json"]["schema"]["properties"]
