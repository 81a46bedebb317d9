"""What a training process asks of its memory allocator."""

import ctypes
import platform

import pytest

from daedl.cli.memory import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept():
    assert keep_freed_memory()


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())  # one without mallopt
    assert not keep_freed_memory()
