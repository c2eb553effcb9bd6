"""Commands to devices: codecs, networks, rules, engine and simulator."""
