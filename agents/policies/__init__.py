"""Learned policies: their networks, the folders that they lie in, and their export."""
