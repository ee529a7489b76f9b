"""A language model small enough for two processor cores."""
