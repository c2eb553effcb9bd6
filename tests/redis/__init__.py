"""The connections of the Redis store, and the embedded server."""
