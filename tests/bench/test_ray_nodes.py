"""A cluster of two nodes on this machine, of which one is lost while it computes."""

import os
import tempfile
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made import stripes

import daedl
from daedl.bulk import predict_files
from daedl.engines import connect
from daedl.networks import ConvNet

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = pytest.mark.slow
WAIT = 120.0  # seconds after which the test gives up


class Held:
    """A function in a worker that never returns on one node, and touches `marker` there."""

    def __init__(self, build, node, marker):
        self.work, self.marker = build(), marker
        self.held = ray.get_runtime_context().get_node_id() == node

    def __call__(self, item):
        if self.held:
            self.marker.touch()
            time.sleep(WAIT)
        return self.work(item)


class Losing:
    """An engine that loses a node as soon as an item is computed there."""

    def __init__(self, engine, cluster, node, marker):
        self.engine, self.cluster, self.node, self.marker = engine, cluster, node, marker

    def map(self, build, items):
        waiting = threading.Thread(target=self.lose, daemon=True)
        waiting.start()
        yield from self.engine.map(partial(Held, build, self.node.node_id, self.marker), items)
        waiting.join()

    def lose(self):
        end = time.monotonic() + WAIT
        while not self.marker.exists() and time.monotonic() < end:
            time.sleep(0.05)
        self.cluster.remove_node(self.node, allow_graceful=False)


@pytest.fixture
def cluster(ray_token):
    with (
        # Short: the paths of sockets have at most 107 characters.
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of Ray's own modules
        from ray.cluster_utils import Cluster

        for name, value in {
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_TOKEN": ray_token,
        }.items():
            patch.setenv(name, value)
        # Workers import this module.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
        started = Cluster(initialize_head=True, head_node_args=node)
        patch.setenv("RAY_ADDRESS", started.address)
        try:
            yield started, partial(started.add_node, **node)
        finally:
            started.shutdown()


def test_a_lost_node_changes_nothing(cluster, tmp_path):
    torch.manual_seed(0)
    model, images = (
        daedl.Classifier(ConvNet(1, 3, image_size=8, channels=4)),
        stripes("stripes", "test"),
    )
    model.fit_post_hoc(images)
    model.save(tmp_path / "model.daedl")
    table = tmp_path / "images.parquet"
    pq.write_table(pa.table({"pixels": list(images.images.flatten(1).numpy())}), table)
    one, many = tmp_path / "one.parquet", tmp_path / "many.parquet"
    options = {"column": "pixels", "part_size": 32}
    predict_files(tmp_path / "model.daedl", [table], one, **options)
    started, add_node = cluster
    second, marker = add_node(), tmp_path / "computing"
    with connect("ray") as engine:
        losing = Losing(engine, started, second, marker)
        predict_files(tmp_path / "model.daedl", [table], many, engine=losing, **options)
    assert marker.exists()
    assert not second.any_processes_alive()
    assert pq.read_table(one).equals(pq.read_table(many))  # bit for bit
    assert not list(tmp_path.glob(".*"))
