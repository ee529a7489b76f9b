"""The presets: runs as data."""
