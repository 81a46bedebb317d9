"""What a process that trains asks of its memory allocator."""

import ctypes

# Parameters of glibc's mallopt, and the largest threshold that it accepts for blocks of their own.
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST_BLOCK = -1, -3, 32 << 20


def keep_freed_memory(at_most: int = 2**31 - 1) -> bool:
    """Let this process keep up to so many freed bytes, if its C library is glibc; tells whether it does.

    A training step on the CPU frees some megabytes and asks for them again. By itself glibc gives them
    back to the system meanwhile, and each page that comes anew is a fault: a sixth of the time of a step
    (`benchmarks/speed.py --only memory`).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (
        AttributeError,
        OSError,
        TypeError,
    ):  # another C library, or a system without one to name
        return False
    kept = mallopt(MMAP_THRESHOLD, LARGEST_BLOCK), mallopt(TRIM_THRESHOLD, at_most)
    return kept == (1, 1)
