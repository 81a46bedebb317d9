"""Configures the memory allocator for training."""

import ctypes

# Parameters of glibc's mallopt and their largest values: DEFAULT_MMAP_THRESHOLD_MAX and INT_MAX.
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST_BLOCK, LARGEST_INT = -1, -3, 32 << 20, 2**31 - 1


def keep_freed_memory() -> bool:
    """Makes glibc keep freed memory in this process; returns whether it succeeded.

    A training step on the CPU frees and reallocates megabytes. By default glibc returns them to the system,
    and the page faults take a sixth of the time of a step (`study speed --only memory`).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # another C library
    kept = mallopt(MMAP_THRESHOLD, LARGEST_BLOCK), mallopt(TRIM_THRESHOLD, LARGEST_INT)
    return kept == (1, 1)
