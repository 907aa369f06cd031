"""Made-up tasks with a known answer that several claims share; one file each."""
