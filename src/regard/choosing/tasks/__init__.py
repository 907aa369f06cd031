"""What `regard choose` tries the scores on: made-up tasks with a known answer, real data, and yours."""
