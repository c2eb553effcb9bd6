"""One file per benchmarked system, run as a program of its own in an environment of its own.

The comment block at the head of a file (inline script metadata) pins what it installs and names the
stores it runs on; nothing else has to know about it.
"""
