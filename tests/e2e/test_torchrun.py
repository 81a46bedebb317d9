"""`daedl.fit` in processes that torchrun launched, each as on a node of its own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import daedl

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
import torch, daedl
import torch.distributed as dist
from daedl.networks import MLP
sys.path.insert(0, {folder!r})
from test_torchrun import samples

torch.set_num_threads(1)
torch.manual_seed(0)
model = daedl.Classifier(MLP(4, 3, (8,)))
for epochs in (2, 1):  # a second training in the same processes
    daedl.fit(model, samples(601), samples(100), max_epochs=epochs, progress=False, accelerator="cpu")
model.save(sys.argv[1] + "/" + os.environ["RANK"] + ".daedl")
dist.destroy_process_group()
"""


def samples(number):
    """Features (N, 4) and three classes; a number that two processes can't share evenly."""
    generator = torch.Generator().manual_seed(number)
    labels = torch.arange(number) % 3
    return torch.randn(number, 4, generator=generator) + 2 * labels[:, None], labels


def test_two_processes_fit_one_density(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", *place]
    launched = [
        subprocess.Popen(
            [*command, "--node-rank", str(node), str(script), str(tmp_path)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in range(2)
    ]
    outputs = [process.communicate()[0] for process in launched]
    assert [process.returncode for process in launched] == [0, 0], outputs
    one, other = (daedl.Classifier.load(tmp_path / f"{rank}.daedl") for rank in (0, 1))
    for name, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    assert one.revisions[0].samples == 601
    both = one.fitted
    one.fit_post_hoc(samples(601), samples(100))  # the same network, in one process
    for name, tensor in one.fitted.state_dict().items():
        torch.testing.assert_close(both.state_dict()[name], tensor, rtol=1e-9, atol=1e-12)
    for name in ("low", "high"):
        expected = getattr(one.fitted.normalizer, name)
        assert getattr(both.normalizer, name) == pytest.approx(expected, rel=1e-9)
    assert both.temperature == pytest.approx(one.fitted.temperature, rel=1e-6)
