"""Collective sums, concatenations and broadcasts; no-ops in a single process.

Every process of the group must call them, otherwise the others block.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def sum_across(tensor: Tensor) -> Tensor:
    """Elementwise sum of `tensor` over all processes; shapes must be equal."""
    if not is_distributed():
        return tensor
    total = tensor.to(_backend_device(), copy=True)
    dist.all_reduce(total)
    return total.to(tensor.device)


def positions(rows: Tensor) -> Tensor:
    """Global positions of the `rows` (N,) of this process, for samples that are assigned round-robin."""
    return rows * dist.get_world_size() + dist.get_rank() if is_distributed() else rows


def every(step: int) -> slice:
    """This process's samples among every `step`-th of all, for samples that are assigned round-robin."""
    rows = (positions(torch.arange(step)) % step == 0).nonzero()[:, 0].tolist()
    return slice(rows[0], None, step // len(rows)) if rows else slice(0)


def gather_across(values: Tensor) -> Tensor:
    """Concatenate the `values` (N_r,) of all processes to (sum of N_r,), in every process."""
    if not is_distributed():
        return values
    device = _backend_device()
    size = torch.tensor([len(values)], device=device)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    # all_gather requires equal shapes, but the number of samples may differ between processes.
    padded = torch.zeros(max(int(s) for s in sizes), dtype=values.dtype, device=device)
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    joined = torch.cat([part[: int(s)] for part, s in zip(parts, sizes, strict=True)])
    return joined.to(values.device)


def broadcast_buffers(network: nn.Module) -> None:
    """Broadcast buffers, such as BatchNorm's running statistics, from the first process."""
    if not is_distributed():
        return
    for buffer in network.buffers():
        shared = buffer.to(_backend_device(), copy=True)
        dist.broadcast(shared, src=0)
        buffer.copy_(shared)


def is_distributed() -> bool:
    """Whether there is more than one process."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _backend_device() -> torch.device:
    """Device on which the backend communicates: NCCL requires the GPU."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
