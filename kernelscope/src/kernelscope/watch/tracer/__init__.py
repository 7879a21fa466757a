"""Records one block step by step, and shows it in the stepper."""
