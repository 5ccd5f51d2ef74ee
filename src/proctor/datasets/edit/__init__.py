"""Edits of whole datasets: copy video packets and table columns, and encode only where needed."""
