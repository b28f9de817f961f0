"""Builders: a model family is one public function, in a file or folder of its name."""
