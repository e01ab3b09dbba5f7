"""What speculation brings: tokens a second with drafts beside without, in one run."""
