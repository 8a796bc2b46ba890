"""What is planted, a file a group."""
