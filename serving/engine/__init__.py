"""Engines turn token ids into label log-probabilities. They know tokens only."""
