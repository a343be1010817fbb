"""Stateless maths on arrays: laws, trees, noise and the exact rules. It knows neither models nor requests."""
