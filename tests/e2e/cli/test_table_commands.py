"""The commands on tables, from a CSV file to a served model."""

import json

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from typer.testing import CliRunner

import daedl
from daedl.cli import app
from daedl.networks import MLP
from daedl.serving import create_app


def call(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def write(path, rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    y = 10 + 5 * x[:, 0] + 0.5 * rng.normal(size=rows)
    lines = [f"{a:.6g},{b:.6g},{c:.6g}" for (a, b), c in zip(x, y, strict=True)]
    path.write_text("\n".join(["size,age,price", *lines]))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for seed, (name, rows) in enumerate((("train", 400), ("held_out", 100), ("test", 50))):
        write(folder / f"{name}.csv", rows, seed)
    options = "--target", "price", "--epochs", 10, "--set", "prior_nu=2.0"
    result = call("train", "--data", folder / "train.csv", "--out", folder / "m.daedl", *options)
    assert result.exit_code == 0, result.output
    assert "RMSE" in result.output
    result = call("calibrate", folder / "m.daedl", "--data", folder / "held_out.csv", "--width", 6)
    assert result.exit_code == 0, result.output
    assert "width > 6" in result.output
    return folder


def test_model(folder):
    model = daedl.Regressor.load(folder / "m.daedl")
    assert model.method.prior_nu == 2
    assert model.scaling.targets.names == ("price",)
    assert model.trained_on["samples"] == 320


def test_predict_evaluate_and_info(folder):
    model, test = folder / "m.daedl", folder / "test.csv"
    result = call("predict", model, test, "--format", "json")
    assert result.exit_code == 0, result.output
    records = json.loads(result.stdout)
    assert len(records) == 50
    assert records[0]["line"] == 2
    assert {"mean", "lower", "upper", "accept", "reason"} <= set(records[0])
    result = call("evaluate", model, "--id", test, "--format", "json")
    figures = {(each["score"], each["metric"]): each["value"] for each in json.loads(result.stdout)}
    assert figures["distribution", "rmse"] < 3
    assert 0.6 < figures["conformal", "coverage90"] <= 1
    blanks, far = folder / "blanks.csv", folder / "far.csv"
    head, *lines = test.read_text().split("\n")
    blanks.write_text("\n".join([head, "", *lines[:2]]))
    records = json.loads(call("predict", model, blanks, "--format", "json").stdout)
    assert [each["line"] for each in records] == [3, 4]
    far.write_text("size,age\n" + "\n".join(f"{100 + k},-90" for k in range(20)))
    result = call("evaluate", model, "--id", test, "--ood", far, "--format", "json")
    unlike = {each["score"]: each for each in json.loads(result.stdout) if each["data"] == str(far)}
    assert unlike["epistemic"]["value"] > 0.99
    assert unlike["density"]["rows"] == 20
    result = call("evaluate", model, "--id", test, "--report", folder / "report.html")
    assert result.exit_code == 1
    assert "--report" in result.output
    assert 'method = "daer"' in model.with_suffix(".toml").read_text()
    result = call("info", model)
    assert result.exit_code == 0, result.output
    assert "size (" in result.output
    assert "price (" in result.output
    assert "RMSE" in result.output


def test_served(folder):
    client = TestClient(create_app(daedl.load(folder / "m.daedl")), "http://localhost")
    described = client.get("/model").json()
    assert described["target_names"] == ["price"]
    assert described["feature_names"] == ["size", "age"]
    answer = client.post("/predict", json={"array": [1.0, 0.0]})
    assert answer.status_code == 200, answer.text
    record = answer.json()
    assert record["mean"] == pytest.approx(15, abs=3)
    assert record["lower"] < record["mean"] < record["upper"]
    batch = client.post("/predict/batch", json={"images": [[1.0, 0.0], [1e6, 1e6]]}).json()
    assert [each["accept"] for each in batch["predictions"]] == [True, False]
    assert batch["predictions"][1]["reason"] == "unlike the training data"
    assert client.get("/openapi.json").status_code == 200


def test_the_server_standardises_features_with_an_offset_exactly(tmp_path):
    torch.manual_seed(0)
    offset = torch.tensor((1e9, 1e9), dtype=torch.float64)
    rows = torch.randn(200, 2, dtype=torch.float64)
    model = daedl.Regressor(MLP(2, 1, hidden=(8,)), "gaussian", feature_names=["a", "b"])
    daedl.fit(model, [(rows + offset, rows.sum(1))], max_epochs=2, progress=False)
    client = TestClient(create_app(model), "http://localhost")
    expected = model.predict(rows[:4] + offset).mean.tolist()
    batch = client.post("/predict/batch", json={"images": (rows[:4] + offset).tolist()}).json()
    assert [each["mean"] for each in batch["predictions"]] == pytest.approx(expected, abs=1e-6)
    far = client.post("/predict", json={"array": [1e200, -1e200]})
    expected = model.predict(torch.tensor([[1e200, -1e200]], dtype=torch.float64)).mean.tolist()
    assert [far.json()["mean"]] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "prize"), "did you mean 'price'"),
        (("--target", "price", "--target", "size", "--target", "age"), "no column besides"),
        (("--target", "price", "--method", "edl"), "unknown method"),
        (("--target", "price", "--validation", 2), "--validation"),
        (("--target", "price", "--text", "age", "--network", "vgg16"), "--network, --text"),
    ],
)
def test_bad_options(folder, tmp_path, options, message):
    result = call("train", "--data", folder / "train.csv", "--out", tmp_path / "m", *options)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("cell", ["red", "nan", "", "inf"])
def test_bad_tables(folder, tmp_path, cell):
    lines = (folder / "train.csv").read_text().split("\n")
    lines[5] = f"1,2,{cell}"
    path = tmp_path / "bad.csv"
    path.write_text("\n".join(lines))
    result = call("train", "--data", path, "--target", "price", "--out", tmp_path / "m")
    assert result.exit_code == 1
    assert "line 6, column 'price'" in " ".join(result.output.split())


def test_commands_for_images_reject_regressors(folder):
    result = call("refit", folder / "m.daedl", "--data", folder / "train.csv")
    assert result.exit_code == 1
    assert "predicts numbers" in " ".join(result.output.split())
    result = call("calibrate", folder / "m.daedl", "--data", folder / "test.csv")
    assert "exactly one" in " ".join(result.output.split())
