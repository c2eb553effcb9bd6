"""Servers and workers that die, freeze or are cut off at a bad moment.

`stable` keeps worker processes ready; `programs` is what runs in them; `journal` and `trail` hold the
proof of what was run and recorded. Workers here are real processes and end by real signals.
"""
