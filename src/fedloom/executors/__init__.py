"""How a cohort's local training is run: one client after the other, or stacked. Whatever runs it, the numbers agree."""
