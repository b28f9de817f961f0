"""Matrix-geometric answers of quasi-birth-and-death processes."""
