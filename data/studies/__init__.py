"""Studies that `ctmc run NAME` finds."""
