"""Facts about a service → its status, conditions and Events; pure."""
