"""Exchange with the rest of the world in the formats of the Open Container Initiative, and Docker's older ones."""
