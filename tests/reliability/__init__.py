"""What is promised where things go wrong, tried at random: fuzz, kills, damaged files, odd machines (docs/outputs.md).

`python -m tests.reliability.fuzz`, `.kills`, `.corruption` and `.surroundings` are commands; a small part of each is
among the tests.
"""
