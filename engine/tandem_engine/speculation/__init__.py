"""Speculation: drafts for the tokens that a step checks side by side, and when they pay; pure."""
