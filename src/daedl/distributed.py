"""Sums and concatenations across processes; in a single process they return what they were given.

Call them in every process of the group, or the others wait for ever.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


def sum_across(tensor: Tensor) -> Tensor:
    """The elementwise sum of every process's `tensor`, which have one shape."""
    if not is_distributed():
        return tensor
    total = tensor.to(_backend_device(), copy=True)
    dist.all_reduce(total)
    return total.to(tensor.device)


def gather_across(values: Tensor) -> Tensor:
    """Every process's `values` (N_r,) one after the other, (sum of N_r,), in every process."""
    if not is_distributed():
        return values
    place = _backend_device()
    size = torch.tensor([len(values)], device=place)
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    # all_gather wants equal shapes, and processes may hold one sample more or less.
    padded = torch.zeros(max(int(s) for s in sizes), dtype=values.dtype, device=place)
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    joined = torch.cat([part[: int(s)] for part, s in zip(parts, sizes, strict=True)])
    return joined.to(values.device)


def broadcast_buffers(network: nn.Module) -> None:
    """Give every process the first one's buffers, such as the running statistics of BatchNorm."""
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
    """Where the backend exchanges tensors: NCCL only on the GPU."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
