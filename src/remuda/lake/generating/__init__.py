"""How `remuda.lake.generate` makes transitions: paths are drawn for numbered messages, times are added up,
and records are numbered, all by native expressions of Spark.

`paths` is what a path is; `job_paths`, `command_paths` and `faulty_paths` are the tables of them. `recipe`
is what was asked for; `drawing` turns numbers into chance. `messages` and `records` make the frames. From
outside only `remuda.lake.generate` may be touched.
"""
