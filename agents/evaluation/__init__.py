"""Evaluation: players of episodes, heuristics by name, and scores, tables and pages."""
