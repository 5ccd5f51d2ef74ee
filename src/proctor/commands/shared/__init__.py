"""What commands share: names, verbs, arguments."""
