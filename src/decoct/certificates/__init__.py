"""How close a coreset posterior is to that of all rows, measured afterwards."""
