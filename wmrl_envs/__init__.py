"""Gymnasium environments whose reward is expensive to execute."""
