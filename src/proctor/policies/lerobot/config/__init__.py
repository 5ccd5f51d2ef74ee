"""LeRobot's config.json, its families and presets."""
