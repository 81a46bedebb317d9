"""The study of intents: a protocol from texts to figures, with a tiny encoder."""

import json

import pytest
from pandas import DataFrame

from daedl_bench.datasets import clinc
from daedl_bench.studies import intents
from daedl_bench.studies.panel.measure import Judge
from tiny_encoder import sentences, write_encoder

pytest.importorskip("transformers")


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_fine_tuned_networks_are_measured(tmp_path, monkeypatch):
    """Queries of no intent have the label -1, which no classifier knows."""
    parts = {"train": 90, "val": 30, "test": 30, "oos_test": 20}
    content = {name: sentences(number, seed) for seed, (name, number) in enumerate(parts.items())}
    content["oos_test"] = [(text, "oos") for text, _ in content["oos_test"]]
    path = tmp_path / clinc.FILE
    path.parent.mkdir()
    path.write_text(json.dumps(content), "utf-8")
    monkeypatch.setattr(clinc, "ENCODER", f"text:{write_encoder(tmp_path / 'encoder')}")
    model, sets = intents.finetuned("daedl", 0, tmp_path)
    found = {(data, each.metric) for data, each in intents.figures(Judge(model, sets), "daedl")}
    assert {("test", "accuracy"), (intents.UNKNOWN, "auroc"), ("", "seconds")} <= found


def test_the_seconds_of_a_table_are_those_of_the_processor():
    costs = [("seconds", 100.0), ("elapsed", 7.0)]
    rows = DataFrame(
        {"method": "daedl", "seed": 0, "task": "cost", "score": "training", "metric": m, "value": v}
        for m, v in costs
    )
    assert intents._cells(rows, intents.Line("DAEDL", "daedl"))[-1] == "100"
