"""What several experiments share: training, small models, closed-form fits, timing of attention."""
