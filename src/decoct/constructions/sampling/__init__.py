"""Constructions that draw rows at random: uniformly, or by scores."""
