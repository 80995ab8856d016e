"""How each server's frames look: tables, and nothing else."""
