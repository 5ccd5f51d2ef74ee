"""Pictures: encoded, decoded, found by their time, copied as packets."""
