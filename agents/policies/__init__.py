"""Learned policies: their networks, the folders of runs, and their export."""
