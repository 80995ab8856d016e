"""What a person reads of a run: the table, the live lines, the CSV, the page. Nothing here measures."""
