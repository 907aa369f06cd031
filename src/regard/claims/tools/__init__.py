"""What experiments share: statistics, training, small models, made-up tasks."""
