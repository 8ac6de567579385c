"""Hostile input: every reader, option and key gets wrong values and must answer with one line or a correct result.

Examples are the same in every run. ``FEDMM_FUZZ_EXAMPLES=10`` tries ten times as many of each; the default, 1, is for
everyday use::

    FEDMM_FUZZ_EXAMPLES=10 python -m pytest tests/fuzz/test_toml.py
"""
