"""Checks of lesson 08."""
