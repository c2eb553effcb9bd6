"""The pure core: no server, no file, no waiting."""
