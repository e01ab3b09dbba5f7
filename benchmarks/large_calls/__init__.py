"""What a call of thousands of prompts costs another caller's stream."""
