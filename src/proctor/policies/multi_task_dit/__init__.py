"""Multi-task diffusion transformer: what it sees and hears becomes one condition."""
