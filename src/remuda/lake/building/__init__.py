"""How each table is brought up to date: what has to be read again, what is replaced, and the commit."""
