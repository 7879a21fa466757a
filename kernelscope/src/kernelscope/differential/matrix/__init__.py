"""Matrix instructions on both machines, and the way of adding that explains what a GPU gave."""
