"""Agents that learn from world-model rewards."""
