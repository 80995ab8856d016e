"""install() and what runs between it and uninstall()."""
