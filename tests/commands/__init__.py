"""What the device engine may rely on of a store for commands, the same on every kind of store.

`workbench` holds the few words that the tests speak in.
"""
