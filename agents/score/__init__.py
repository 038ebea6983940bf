"""Scores of rules that anybody wrote: a language without ways out, a sandbox, and windows that nobody knows before."""
