"""Configuration of the memory allocator."""

import ctypes
import platform

import pytest

from daedl.cli.memory import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_kept():
    assert keep_freed_memory()


def test_other_c_libraries_are_not_configured(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())  # without mallopt
    assert not keep_freed_memory()
