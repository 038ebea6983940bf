"""The validity page: how near the simulator's clock and load are to what was measured, and where they break.

`python -m experiments.validity data=FOLDER out=docs` measures every section of the page anew, writes its figures
(`results/validity/*.json`), and the page with its plots from these figures alone. A section whose data are not
there keeps its last figures and says so. A new section is a few functions and a line
under `SECTIONS` in one of the modules here.
"""
