"""What a user may rely on, the same on every store: each test runs once for each kind.

`workbench` holds the few words that the tests speak in. What only SQL stores can do is in `test_sql_*`.
"""
