"""Memory is given back to the system."""

import ctypes
import sys

import pytest

from benchmarks.steadiness import resident_bytes
from wmrl_agents.memory import give_back_free_memory


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="the C library gives nothing back",
)
def test_what_is_free_below_something_kept_goes_back_to_the_system():
    give_back_free_memory()
    before = resident_bytes()
    blocks = [bytearray(60_000) for _ in range(2000)]  # small enough for the heap
    held = blocks.pop()  # at the heap's end
    assert resident_bytes() - before > 0.9 * 120_000_000
    del blocks
    assert give_back_free_memory()
    assert resident_bytes() - before < 0.1 * 120_000_000
    del held


def test_a_system_without_it_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert not give_back_free_memory()
