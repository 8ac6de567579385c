"""Train experiments from files: single runs, sweeps, comparisons and tunings, their folders, and how they resume."""
