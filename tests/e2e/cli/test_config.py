"""`--config` of every command, the file that `daedl train` writes, completion and help."""

import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

import daedl
from daedl.cli import COMMANDS, app


def call(*arguments, **environment):
    return CliRunner().invoke(app, [str(each) for each in arguments], env=environment)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("data") / "data.npz", np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = rng.integers(0, 100, (40, 8, 8, 3)) + 150 * labels[:, None, None, None]
    np.savez(path, images=images.astype(np.uint8), labels=labels)
    return path


def configuration(path, **values):
    """Writes TOML; repr of these values is valid TOML apart from booleans."""
    lines = (f"{name} = {str(v).lower() if v is True else repr(v)}" for name, v in values.items())
    path.write_text("\n".join(lines))
    return path


class TestTrain:
    def test_written_options_repeat_the_training(self, data, tmp_path):
        first, again = tmp_path / "first.daedl", tmp_path / "again.daedl"
        options = "--epochs", 2, "--set", "covariance=tied", "--set", "kl_weight=0.1", "--seed", 3
        more = "--colour", "--augment", "flip", "--class-weights", "balanced"
        result = call("train", "--data", data, "--out", first, *options, *more)
        assert result.exit_code == 0, result.output
        written = tomllib.loads((tmp_path / "first.toml").read_text())
        assert written["set"] == ["covariance=tied", "kl_weight=0.1"]
        assert (written["grey"], written["class-weights"]) == (False, "balanced")
        assert {"out", "force", "resume", "config"}.isdisjoint(written)
        result = call("train", "--config", tmp_path / "first.toml", "--out", again)
        assert result.exit_code == 0, result.output
        assert first.read_bytes() == again.read_bytes()
        assert (tmp_path / "again.toml").read_bytes() == (tmp_path / "first.toml").read_bytes()

    def test_the_command_line_takes_precedence(self, data, tmp_path):
        config = configuration(tmp_path / "run.toml", data=str(data), epochs=3, batch_size=20)
        out = tmp_path / "m.daedl"
        result = call(
            "train", "--config", config, "--epochs", 1, "--out", out, "--precision", "bf16-mixed"
        )
        assert result.exit_code == 0, result.output
        assert daedl.Classifier.load(out).trained_on["epochs"] == 1
        written = tomllib.loads((tmp_path / "m.toml").read_text())
        assert (written["batch-size"], written["precision"]) == (20, "bf16-mixed")

    def test_files_of_the_user_are_not_replaced(self, data, tmp_path):
        config = configuration(tmp_path / "run.toml", data=str(data), epochs=1)
        text = config.read_text()
        out = tmp_path / "run.daedl"
        result = call("train", "--config", config, "--out", out)
        assert result.exit_code == 1
        assert "--force" in result.stderr
        assert config.read_text() == text
        assert not out.exists()
        assert call("train", "--config", config, "--out", out, "--force").exit_code == 0
        out.unlink()  # the file of options is now one of daedl's
        assert call("train", "--config", config, "--out", out).exit_code == 0


class TestEveryCommand:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_unknown_options_are_rejected(self, command, tmp_path):
        config = configuration(tmp_path / "run.toml", thread=1)
        result = call(command, "--config", config)
        assert result.exit_code == 1
        assert "unknown option" in result.stderr
        assert "did you mean 'threads'" in result.stderr

    def test_arguments_and_lists(self, data, tmp_path):
        out = tmp_path / "m.daedl"
        result = call("train", "--data", data, "--out", out, "--epochs", 1, "--method", "softmax")
        assert result.exit_code == 0, result.output
        values = {"model": str(out), "id": str(data), "ood": str(data), "format": "csv"}
        config = configuration(tmp_path / "run.toml", **values)
        result = call("evaluate", "--config", config)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("data,images")
        config = configuration(tmp_path / "run.toml", **{**values, "ood": [str(data), str(out)]})
        assert str(out) in call("evaluate", "--config", config).stderr

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("epochs = ", "not valid TOML"),
            ("epochs = true", "expected one value"),
            ("epochs = [1, 2]", "expected one value"),
            ("finetune = 1", "expected true or false"),
            ("set = [[1]]", "expected a list"),
            ("[set]\ncovariance = 'tied'", "expected a list"),
            ("config = 'other.toml'", "unknown option"),
        ],
    )
    def test_invalid_files(self, text, message, tmp_path):
        config = tmp_path / "run.toml"
        config.write_text(text)
        result = call("train", "--config", config)
        assert result.exit_code == 1
        assert message in result.stderr
        assert result.stderr.count("\n") == 1

    def test_invalid_values_name_the_option(self, tmp_path):
        result = call(
            "train", "--config", configuration(tmp_path / "run.toml", data="x", epochs="five")
        )
        assert result.exit_code == 2
        assert "--epochs" in result.stderr

    def test_missing_files(self, tmp_path):
        result = call("train", "--config", tmp_path / "missing.toml")
        assert result.exit_code == 1
        assert "missing.toml" in result.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("daedl re", ["refit"]),
        ("daedl train --method dae", ["daedl", "daer"]),
        ("daedl train --network res", ["resnet18"]),
        ("daedl train --backbone eff", ["efficientnet-lite0"]),
        ("daedl refit --hel", ["--held-out", "--help"]),
    ],
)
def test_completion(words, expected):
    result = CliRunner().invoke(
        app,
        [],
        prog_name="daedl",
        env={
            "_DAEDL_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        },
    )
    assert result.stdout.split() == expected


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_into_80_columns(command):
    result = call(*[command] * bool(command), "--help", COLUMNS="80", TERMINAL_WIDTH="80")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "..." not in result.stdout.replace("[ARGS]...", "").replace("{INPUTS}...", "")
