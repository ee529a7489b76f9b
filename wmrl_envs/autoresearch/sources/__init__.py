"""Where competitions come from."""
