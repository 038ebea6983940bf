"""Evaluation: players of episodes, heuristics by name, and the scores, tables and pages made of what they played."""
