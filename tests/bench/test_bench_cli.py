"""`python -m daedl_bench list`, `run` and `study`."""

import pkgutil

import pytest
from typer.testing import CliRunner

from daedl_bench import spec, studies
from daedl_bench.cli import app


def invoke(*arguments, **options):
    return CliRunner().invoke(app, list(map(str, arguments)), **options)


def test_experiments_are_listed():
    listed = invoke("list", "--no-times", env={"COLUMNS": "60"})
    assert listed.exit_code == 0
    assert all(name in listed.output for name in spec.catalogue().experiments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist-odd"], "did you mean 'mnist-ood'"),
        (["mnist-ood", "--methods", "deadl"], "did you mean 'daedl'"),
        (["mnist-ood", "--protocol", "quik"], "did you mean 'quick'"),
        (["mnist-ood", "--seeds", "some"], "seeds are 'some'"),
        (["mnist-ood", "--seeds", "4-0"], "seeds are '4-0'"),
    ],
)
def test_mistakes_are_reported_before_folders_are_created(tmp_path, arguments, message):
    places = ["--results", tmp_path / "results", "--cache", tmp_path / "cache"]
    wrong = invoke("run", *arguments, *places)
    assert wrong.exit_code == 1
    assert message in wrong.output
    assert list(tmp_path.iterdir()) == []


def test_missing_data_are_listed_at_the_end(tmp_path):
    places = ["--results", tmp_path, "--cache", tmp_path, "--data", tmp_path / "data"]
    unreachable = {"http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    result = invoke("run", "ablation-mnist", *places, env=unreachable)
    assert result.exit_code == 1
    assert str(tmp_path / "data" / "MNIST" / "raw") in result.stderr.replace("\n", "")
    assert "failed: mnist" in result.stderr
    assert result.stdout.splitlines()[-1] == "nothing was measured"


@pytest.mark.parametrize("option", ["--cache", "--results"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path, option):
    (tmp_path / "file").write_text("kept")
    places = {"--cache": tmp_path / "cache", "--results": tmp_path / "results"}
    places[option] = tmp_path / "file" / "below"
    result = invoke("run", "mnist-ood", *(part for pair in places.items() for part in pair))
    assert result.exit_code == 1
    assert f"cannot write into the folder {tmp_path / 'file' / 'below'}" in result.stderr
    assert (tmp_path / "file").read_text() == "kept"


def test_every_study_is_a_command():
    modules = {each.name for each in pkgutil.iter_modules(studies.__path__)}
    names = {name for name in modules if not name.startswith("_")}
    assert {"costs", "mnist_rates", "pages", "pairing", "serving", "speed"} <= names
    for name in names:
        assert invoke("study", name, "--help").exit_code == 0, name
    assert invoke("study", "costz").exit_code == 2
