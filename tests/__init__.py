"""Tests by kind, one folder each; `servers` holds the real databases that they run against."""
