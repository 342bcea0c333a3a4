"""The HTTP surface: one file for each, all of them thin around the one flow."""
