"""Run folders and training folders: their files, formats, locks and error messages."""
