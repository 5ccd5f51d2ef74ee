"""Images and videos: encoding, decoding by timestamp, and copying packets."""
