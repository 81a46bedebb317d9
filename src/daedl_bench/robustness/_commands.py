"""`daedl` commands in processes that are killed."""

import os
import subprocess
import sys
from pathlib import Path

PROCESSES = 2  # at a time


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a `daedl` command with one thread."""
    return subprocess.Popen(
        [sys.executable, "-m", "daedl", *map(str, arguments), "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def finish(process: subprocess.Popen[str], kill: bool = False) -> bool:
    """Wait for the end of `process`, after killing it with `kill`; whether it ended without an error."""
    if kill:
        process.kill()
    process.communicate(timeout=300)
    return process.returncode == 0


def temporaries(folder: Path) -> list[Path]:
    """Temporary files that were being written."""
    return list(folder.glob(".*.tmp"))
