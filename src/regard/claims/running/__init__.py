"""Running claims over processes, and their results on disk and in the terminal."""
