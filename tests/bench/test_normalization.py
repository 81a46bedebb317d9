"""The study of spectral normalisations: rows that are kept, and their table."""

from daedl_bench import results
from daedl_bench.spec import catalogue
from daedl_bench.studies import normalization
from daedl_bench.studies.normalization import FILE, NORMALIZATIONS
from daedl_bench.summary import Results


def test_every_normalization_is_measured_once(tmp_path, monkeypatch):
    monkeypatch.setattr(normalization, "CHOSEN", ("wine",))
    for _ in range(2):
        normalization.main("wine", "0", None, tmp_path)
    rows = results.load(tmp_path / FILE)
    bounds = {row.method: row.value for row in rows if row.metric == "lipschitz"}
    assert list(bounds) == list(NORMALIZATIONS)
    assert len(rows) == len({(row.method, row.data, row.task, row.metric) for row in rows})
    published, _, soft, default, free = bounds.values()
    # Two hidden layers; the norms have converged to 1% or so.
    assert 0.9 < published < 1.2
    assert 8 < default < 10
    assert soft <= min(default, free) * 1.1
    lines = normalization.table(Results.load(tmp_path, catalogue())).splitlines()
    assert len(lines) == 2 + len(NORMALIZATIONS)
    assert lines[2].startswith("| wine, 2 classes | as published")
