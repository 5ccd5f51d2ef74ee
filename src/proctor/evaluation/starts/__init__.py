"""Which starts trained a policy, and evaluations of the others."""
