"""Figures of papers, and claims, as functions, by paper."""
