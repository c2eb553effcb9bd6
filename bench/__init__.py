"""The benchmark: Remuda beside its peers and the bare drivers, in one run on one machine.

``python -m bench`` runs it; ``README.md`` says what each figure means.  ``peer`` is the only module
that also runs inside the peers' own environments, so it needs nothing beyond the standard library.
"""
