"""What a process that trains asks of its memory allocator."""

import ctypes

# Parameters of glibc's mallopt, and the largest values: of a block's size by glibc, of an int by C.
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST_BLOCK, LARGEST_INT = -1, -3, 32 << 20, 2**31 - 1


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, if its C library is glibc; tells whether it does.

    A training step on the CPU frees some megabytes and asks for them again. By itself glibc gives them
    back to the system meanwhile, and each page that comes anew is a fault: a sixth of the time of a step
    (`benchmarks/speed.py --only memory`).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False  # another C library, or a system without one to name
    kept = mallopt(MMAP_THRESHOLD, LARGEST_BLOCK), mallopt(TRIM_THRESHOLD, LARGEST_INT)
    return kept == (1, 1)
