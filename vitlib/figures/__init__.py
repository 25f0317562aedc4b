"""Figures of one lesson each, in the style of vitlib.plots."""
