"""Checks of lesson 07."""
