"""Is the attention in my model healthy, why not, and what helps."""
