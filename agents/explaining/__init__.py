"""Explaining a policy: what it was asked, which features move it, and a small rule that decides in its place."""
