"""Ray on this machine: scores, densities and experiments equal those of one process; workers that die."""

import os
import shutil
import tempfile
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made import TINY, stripes
from typer.testing import CliRunner

import daedl
from daedl import engines
from daedl.bulk import Labelled, find_parts, fit_density, predict_files
from daedl.checks import import_optional
from daedl.cli import app
from daedl.engines import Ray, connect
from daedl.networks import ConvNet
from daedl_bench import results, runner
from daedl_bench.cache import Cache
from daedl_bench.spec import catalogue
from daedl_bench.workspace import Workspace

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [
    pytest.mark.slow,
    # Ray Data sets its own deprecated settings.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data"),
]


@pytest.fixture(scope="module")
def engine(ray_token):
    """A cluster of its own with two workers, which leaves nothing in the home folder."""
    # Short: the paths of sockets have at most 107 characters.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", ray_token)
        # Workers import this module and `made`.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )
        try:
            with connect("ray") as connected:  # uses this cluster, and doesn't stop it
                assert isinstance(connected, Ray)
                yield connected
            assert ray.is_initialized()
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.daedl"
    torch.manual_seed(0)
    classifier = daedl.Classifier(ConvNet(1, 3, image_size=8, channels=4))
    images = stripes("stripes", "train")
    classifier.fit_post_hoc(images)
    classifier.calibrate(images)
    classifier.save(path)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Images as rows of pixels, in groups of whole batches."""
    path, images = tmp_path_factory.mktemp("table") / "images.parquet", stripes("stripes", "test")
    pixels = list(images.images.flatten(1).numpy()) * 7
    columns = {"pixels": pixels, "class": images.labels.tolist() * 7}
    pq.write_table(pa.table(columns), path, row_group_size=512)
    return path


class Dying:
    """A function in a worker that kills its process, once, after the first item."""

    def __init__(self, build, marker):
        self.work, self.marker = build(), marker

    def __call__(self, item):
        result = self.work(item)
        with suppress(FileExistsError):
            self.marker.touch(exist_ok=False)
            os.kill(os.getpid(), 9)
        return result


class Killing:
    """An engine of which one worker dies, in the map number `at`."""

    def __init__(self, engine, marker, at=1):
        self.engine, self.marker, self.left = engine, marker, at

    def map(self, build, items):
        self.left -= 1
        dying = partial(Dying, build, self.marker) if self.left == 0 else build
        yield from self.engine.map(dying, items)


def test_results_equal_and_a_dead_worker_changes_nothing(engine, model, table, tmp_path):
    one, many = tmp_path / "one.parquet", tmp_path / "many.parquet"
    options = {"column": "pixels", "keep": ["class"], "part_size": 256}
    predict_files(model, [table], one, **options)
    killing = Killing(engine, tmp_path / "died")
    assert predict_files(model, [table], many, engine=killing, **options).rows == 2100
    assert (tmp_path / "died").exists()
    assert pq.read_table(one).equals(pq.read_table(many))  # bit for bit
    assert not list(tmp_path.glob(".*"))


def test_commands_spread_over_workers(engine, model, table, tmp_path):
    options = ["--column", "pixels", "--engine"]
    for name in ("local", "ray"):
        command = ["predict", model, table, "--out", tmp_path / f"{name}.parquet", *options, name]
        result = CliRunner().invoke(app, list(map(str, command)))
        assert result.exit_code == 0, result.output
        assert "Wrote 2100 predictions" in result.stderr
    one, many = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("local", "ray"))
    assert one.equals(many)


def test_the_density_equals_that_of_one_process(engine, model, table, tmp_path):
    parts = [
        Labelled(part, daedl.Scorer(model, column="pixels"), "class")
        for part in find_parts([table], 256)
    ]
    images = stripes("stripes", "test")
    whole = daedl.Classifier.load(model)
    whole.fit_post_hoc((images.images.repeat(7, 1, 1, 1), images.labels.repeat(7)))
    killing = Killing(engine, tmp_path / "died", at=3)  # while statistics are computed
    fitted = fit_density(
        daedl.Classifier.load(model), parts, engine=killing, folder=tmp_path
    ).fitted
    assert (tmp_path / "died").exists()
    for name, tensor in whole.fitted.state_dict().items():
        torch.testing.assert_close(fitted.state_dict()[name], tensor, rtol=1e-9, atol=1e-12)
    assert fitted.normalizer.low == pytest.approx(whole.fitted.normalizer.low, rel=1e-9)
    assert fitted.normalizer.high == pytest.approx(whole.fitted.normalizer.high, rel=1e-9)
    assert fitted.reference == pytest.approx(whole.fitted.reference, rel=1e-9)


def test_experiments_by_two_workers_write_the_same_rows(engine, tmp_path):
    def measured(name, **options):
        path = tmp_path / name
        path.mkdir()
        space = Workspace(stripes, Cache(path / "cache"))
        assert (
            runner.run(catalogue(TINY), "tiny", space, path / "rows.jsonl", seeds=(0, 1), **options)
            == []
        )
        rows = results.load(path / "rows.jsonl")
        assert len(list((path / "cache").iterdir())) == 2  # a network per seed
        return sorted(
            (row.seed, row.method, row.data, row.score, row.metric, row.value)
            for row in rows
            if row.task != "cost"
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", daedl.ChanceWarning)
        alone = measured("alone")
    together = measured("together", engine="ray")
    assert together == alone
    assert len(set(together)) == len(together) > 0


def test_ray_data_calls_a_scorer(engine, model, table, tmp_path):
    """As in docs/many_machines.md."""
    data = import_optional("ray.data", "this test", "'daedl[ray]'")
    data.DataContext.get_current().enable_progress_bars = False
    scored = data.read_parquet(str(table)).map_batches(
        daedl.Scorer,
        fn_constructor_args=[str(model)],
        fn_constructor_kwargs={"column": "pixels", "outputs": ["label", "log_density"]},
        batch_size=256,
        concurrency=1,
    )
    rows = scored.take_all()
    pixels = np.stack(pq.read_table(table)["pixels"].to_pylist()).astype(np.uint8)
    expected = daedl.Scorer(model)(pixels)
    got = np.sort([row["log_density"] for row in rows])
    assert np.allclose(got, np.sort(expected["log_density"]), rtol=1e-5)


def test_errors_of_workers_arrive_and_leave_nothing_whole(engine, model, tmp_path, monkeypatch):
    path, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pq.write_table(pa.table({"v": [[0.0] * 5] * 3}), path)
    with pytest.raises(ValueError, match=r"in\.parquet, rows 0 to 2"):
        predict_files(model, [path], out, engine=engine)
    assert not out.exists()

    def without_the_extra():
        return import_optional("no_such_package", "Parquet files", "'daedl[ray]'")

    with pytest.raises(ImportError, match=r"pip install 'daedl\[ray\]'"):
        list(engine.map(without_the_extra, [1]))

    def dying():
        os._exit(1)

    monkeypatch.setattr(engines, "RETRIES", 0)
    with pytest.raises(ConnectionError, match="lost 1 time"):
        list(Ray(ray).map(dying, [1]))
    assert list(engine.map(lambda: lambda item: item + 1, [1, 2])) == [2, 3]
