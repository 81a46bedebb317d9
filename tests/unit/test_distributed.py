"""Densities of two processes, to which samples are assigned round-robin, and of one."""

import multiprocessing

import pytest
import torch

from daedl.density import DensityScorer
from daedl.density.scorer import RANGE
from daedl.distributed import every

SETTINGS = {"covariance": "tied-low-rank", "rank": 1, "leave_one_out": True}


def samples():
    """Features (N, 3), more than the range is computed from, and two classes, of which one comes late."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2 * RANGE + 1001, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(len(features)) % 7 // 6
    labels[:500] = 0
    return features * (1 + labels[:, None] * torch.tensor([0.0, 1.0, 2.0])), labels


def fit_half(rank, folder):
    """Fit to every second sample in one of two processes, and save the fitted state."""
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    assert [torch.arange(9)[every(step)].tolist() for step in (1, 2, 3, 4)] == [
        [[*range(9)], [*range(9)], [0, 3, 6], [0, 2, 4, 6, 8]],
        [[*range(9)], [], [1, 4, 7], []],
    ][rank]
    features, labels = samples()
    scorer = DensityScorer.fit(features[rank::2], labels[rank::2], 2, **SETTINGS)
    torch.save((scorer.state_dict(), scorer.settings()), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_pilot_and_range_do_not_depend_on_the_number_of_processes(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=fit_half, args=(rank, tmp_path)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    whole = DensityScorer.fit(*samples(), 2, **SETTINGS)
    for rank in (0, 1):
        scorer = DensityScorer.restore(*torch.load(tmp_path / f"{rank}.pt"))
        assert torch.equal(scorer.density.directions, whole.density.directions)
        for name in ("low", "high"):
            expected = getattr(whole.normalizer, name)
            assert getattr(scorer.normalizer, name) == pytest.approx(expected, rel=1e-9)
        assert scorer.reference == pytest.approx(whole.reference, rel=1e-9)
