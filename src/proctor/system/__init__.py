"""The operating system and machine: files, locks, GL, the Hub, Ray, user code, hardware."""
