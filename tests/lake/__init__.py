"""The lake on Spark: one session per test process, small frames, real stores."""
