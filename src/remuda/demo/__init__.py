"""`make demo`: the whole system at work, on a file, with things going wrong on purpose; then on Valkey."""
