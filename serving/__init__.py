"""Answers routing questions: surfaces, prefilter, engine and the one flow between them. Imports prompts."""
