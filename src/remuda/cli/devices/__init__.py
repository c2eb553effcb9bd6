"""`remuda devices`: commands to devices, on the command line.

`app` puts the commands together. They live in `running` (with `assembling`), `sending` (with `asking`),
`showing` (with `stories`), `looking`, `operating` and `simulating` (with `servers` and `summaries`). What
they share: `fleets` (opening one), `records` (the JSON fields). No module imports an engine, a network or
a simulator before a command needs it.
"""
