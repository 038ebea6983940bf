"""Sends requests to an OpenAI-compatible server in real time; runs in the engine's own Python."""
