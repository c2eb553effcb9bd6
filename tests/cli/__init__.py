"""The `remuda` command: what it prints, how it ends, and the processes it runs."""
