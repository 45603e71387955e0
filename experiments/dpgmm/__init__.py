"""Borsos, Bachem & Krause (2017), figure by figure."""
