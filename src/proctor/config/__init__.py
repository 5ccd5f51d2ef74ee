"""What a command is asked to do: pure dataclasses, filled by one builder."""
