"""The machine Proctor runs on: files, graphics, the Hub."""
