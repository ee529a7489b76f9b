"""Giving memory back to the system.

A step frees its activations, but the C library's heap gives back only what lies at its end: one small object
behind a free stretch keeps that with the process. How much that is drifts upward over hundreds of steps.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["give_back_free_memory"]


def give_back_free_memory() -> bool:
    """Give what the heap holds free back to the system, where the C library can (glibc, not musl).

    Returns:
        Whether anything was given back.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    return trim is not None and bool(trim(0))
