"""Models from and to the files of other tools."""
