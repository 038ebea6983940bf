"""The zoo: the shipped policies are trained by its command, measured, and exported with a card each."""
