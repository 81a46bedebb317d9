"""Memory of a process, as Linux reports it."""

from pathlib import Path


def memory(field: str = "VmRSS", process: int | str = "self") -> float:
    """Resident memory of a process in MiB; its peak with the field VmHWM."""
    status = Path(f"/proc/{process}/status").read_text("utf-8")
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def reset_peak(process: int | str = "self") -> float:
    """Reset the peak of a process, and return its memory in MiB."""
    Path(f"/proc/{process}/clear_refs").write_text("5", "utf-8")
    return memory(process=process)
