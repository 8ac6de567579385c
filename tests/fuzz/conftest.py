"""Hostile input: every reader, option and key is given wrong values, and answers with one sentence or a right result.

Examples are the same in every run. ``FEDMM_FUZZ_EXAMPLES=10`` tries ten times as many of each; the default, 1, is for
every day::

    FEDMM_FUZZ_EXAMPLES=10 python -m pytest tests/fuzz/test_toml.py
"""
