"""Reports: load runs, summarise and compare them, and show them as tables, pages and files."""
