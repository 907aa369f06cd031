"""Running claims over processes, with bars, and their results on disk."""
