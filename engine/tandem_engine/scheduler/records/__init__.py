"""What the last steps did and why: a ring of records, and their explanations for people."""
