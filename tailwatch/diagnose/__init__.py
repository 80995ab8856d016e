"""What is wrong, and what lessens it: rules over a snapshot, and their findings in words."""
