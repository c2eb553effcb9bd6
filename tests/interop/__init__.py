"""Programs other than ours on the same queue. Each is the released one, in an environment of its own."""
