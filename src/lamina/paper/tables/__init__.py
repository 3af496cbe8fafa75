"""The tables of the CVPR 2026 paper, run anew by `lamina paper reproduce TABLE|all`; `registry.py` lists them all."""
