"""The lake: the tables that Spark keeps of every transition, and the answers that they give.

`Lake` (place.py) is a directory of tables; `session.py` opens Spark. `sources/` are Spark's ways into a
store and back. `ingest` carries the trail over, `build` makes the other tables from it; `audit`, `triage`,
`replay`, `campaign`, `whatif`, `export`, `report` ask them. What transforms is a function from DataFrame to
DataFrame without I/O; what does I/O decides nothing. Needs the extra `remuda[lake]`.
"""
