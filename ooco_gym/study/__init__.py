"""Studies: many simulations under a table of conditions, and what follows from them.

`runs` plays and keeps them, `search` finds the largest or least that holds, `tuning` picks settings,
`options` reads what all commands have in common.
"""
