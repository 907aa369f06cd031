"""What every measurement on this machine shares: clocks, memory, errors, files, words."""
