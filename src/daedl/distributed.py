"""Sums and concatenations across processes; in a single process they return what they were given.

Call them in every process of the group, or the others wait for ever.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def active() -> bool:
    """Whether this process is one of several that work together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_across(tensor: Tensor) -> Tensor:
    """The elementwise sum of every process's `tensor`, which have one shape."""
    if not active():
        return tensor
    total = tensor.clone()
    dist.all_reduce(total)
    return total


def gather_across(values: Tensor) -> Tensor:
    """Every process's `values` (N_r,) one after the other, (sum of N_r,), in every process."""
    if not active():
        return values
    sizes = [torch.zeros(1, dtype=torch.long, device=values.device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(values)], device=values.device))
    longest = max(int(size) for size in sizes)
    padded = values.new_zeros(longest)
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(size)] for part, size in zip(parts, sizes, strict=True)])
