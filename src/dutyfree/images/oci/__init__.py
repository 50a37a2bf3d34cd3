"""Import and export in the formats of the Open Container Initiative (OCI) and in Docker's older ones."""
