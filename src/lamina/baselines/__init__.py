"""What lamina is compared with: surface FEM, closest point methods, GINO. `solve.py` calls them all alike."""
