"""Bounds a candidate list of any size to the few that the model reads."""
