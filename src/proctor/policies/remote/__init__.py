"""A policy that somebody serves: asked over a wire, by many episodes at once."""
