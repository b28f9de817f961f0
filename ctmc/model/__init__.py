"""The words of the field: state spaces, generators, QBDs, rewards, predicates."""
