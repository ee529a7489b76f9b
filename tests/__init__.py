"""The tests mirror the packages: one file a module."""
