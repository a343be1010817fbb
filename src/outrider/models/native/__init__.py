"""The compiled layer: built where a compiler is, used where it runs."""
