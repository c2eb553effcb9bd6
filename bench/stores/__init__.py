"""One file per store: ``serve(directory)`` starts a private server and hands out fresh databases."""
