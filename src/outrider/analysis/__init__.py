"""What speculation should give: closed forms and exact enumeration of the shipped rules; NumPy only."""
