"""so101-nexus, in an interpreter of its own."""
