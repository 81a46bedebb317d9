"""The example of texts runs with a tiny encoder."""

import runpy
from pathlib import Path

import pytest

import daedl
from tiny_encoder import sentences, write_csv, write_encoder

pytest.importorskip("transformers")
EXAMPLE = Path(__file__).parents[2] / "examples" / "text.py"


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_the_example_trains_asks_and_saves(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DAEDL_CACHE", str(tmp_path / "cache"))
    write_encoder(tmp_path / "encoder")
    data = write_csv(tmp_path / "intents.csv", sentences(150))
    main = runpy.run_path(str(EXAMPLE))["main"]
    options = ["--encoder", f"text:{tmp_path / 'encoder'}", "--out", str(tmp_path / "m.daedl")]
    # Not the sentences of the example, of which the tiny encoder knows too few words.
    main(
        [
            str(data),
            "--text",
            "query",
            "--label",
            "intent",
            *options,
            "--ask",
            "pay the bill",
            "zzz",
        ]
    )
    assert "pay the bill: money" in capsys.readouterr().out
    assert daedl.Classifier.load(tmp_path / "m.daedl").thresholds is not None
